"""The words and sentences of `stories`, and how a story is put together from them.

A sentence is a template; what stands in braces is fixed for a whole story, so that names, pronouns, things and places
agree from its first sentence to its last. {Hero} has {he}, {him} and {his}, {Friend} has {she} and {her}, whichever
these are in the story. `one|other` in a step of a plot are ways to tell it.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar


def _split(words: str) -> tuple[str, ...]:
    return tuple(words.split())


_GIRLS = _split(
    "Lily Mia Anna Sara Emma Rosie Zoe Nina Ella Clara Ivy Ruby Maya Tess Alma Dora Iris Lucy Hana Vera "
    "Molly Jane Amy Kate"
)
_BOYS = _split(
    "Tom Ben Max Sam Leo Jack Tim Finn Oscar Noah Hugo Paul Adam Luke Ravi Omar Theo Carl Ned Felix Jonas "
    "Peter Ali Mark"
)
_ANIMALS = ("dog", "cat", "rabbit", "fox", "bear", "mouse", "squirrel", "duck", "owl", "pony", "hedgehog", "frog")
_TRAITS = _split(
    "happy kind curious brave shy clever quiet cheerful gentle lively careful playful friendly stubborn "
    "hungry sleepy polite proud patient silly"
)
_SIZES = ("little", "small", "young", "tiny")
_ADJECTIVES = _split("red blue green yellow big small shiny old new soft round wooden striped pretty golden")
_THINGS = (
    *(("ball", "balls"), ("kite", "kites"), ("doll", "dolls"), ("boat", "boats"), ("drum", "drums"), ("book", "books")),
    *(("hat", "hats"), ("scarf", "scarves"), ("button", "buttons"), ("bell", "bells"), ("box", "boxes")),
    *(("lantern", "lanterns"), ("basket", "baskets"), ("whistle", "whistles"), ("blanket", "blankets")),
    *(("marble", "marbles"), ("puppet", "puppets"), ("wagon", "wagons"), ("umbrella", "umbrellas"), ("cup", "cups")),
    *(("toy car", "toy cars"), ("teddy bear", "teddy bears"), ("paper bird", "paper birds"), ("ring", "rings")),
    *(("spoon", "spoons"), ("brush", "brushes"), ("shell", "shells"), ("stone", "stones")),
)
_PLACES = (
    *("in the park", "in the garden", "by the river", "at the beach", "in the forest", "on the hill", "at the farm"),
    *("by the lake", "in the meadow", "near the old mill", "behind the house", "at the playground", "by the pond"),
    *("under the big oak tree", "near the bridge", "at the market", "in the barn", "on the path", "near the school"),
    *("in the field", "by the well", "at the harbour", "in the orchard", "near the station"),
)
_HOMES = (
    *("in a small village", "in a little house near the woods", "on a farm", "in a big city", "by the sea"),
    *("in a tall house", "at the edge of the forest", "in a quiet street", "high up in the hills", "near a river"),
)
_WEATHERS = (
    *("the sun was shining", "it was very windy", "the sky was grey", "it was warm and bright"),
    *("there was snow on the ground", "the birds were singing", "fog lay over the fields", "a light rain was falling"),
    *("the air was cold", "big clouds were passing by", "the leaves were turning brown", "the flowers were in bloom"),
)
_FOODS = _split("apple cake pie sandwich pear cookie pancake orange carrot muffin banana plum")
_HOBBIES = (
    *(
        "sing",
        "draw",
        "dance",
        "climb trees",
        "read stories",
        "play in the rain",
        "count the stars",
        "bake with {his} {kin}",
    ),
    *("run very fast", "look for shells", "build towers", "help {his} {kin}", "watch the clouds", "jump over puddles"),
    *("listen to the birds", "hide behind the curtains", "paint big pictures", "ride on the wagon"),
)
_SKILLS = (
    *("swim", "whistle", "skate", "juggle", "ride a bicycle", "write {his} name", "tie {his} shoes", "fly a kite"),
    *("bake bread", "play the drum", "count to a hundred", "sew on a button", "climb the rope", "tell the time"),
)
_KIN = ("mother", "father", "grandmother", "grandfather", "aunt", "uncle", "big sister", "big brother")

_OPENINGS = (
    "Once upon a time, there was a {trait} {size} {kind} named {Hero}.",
    "Once there was a {size} {kind} who lived {home}. {His} name was {Hero}, and {he} was very {trait}.",
    "There once was a {size} {kind} called {Hero}. {Hero} lived {home} with {his} {kin}.",
    "{Hero} was a {trait} {kind} who lived {home}.",
    "Long ago, a {trait} {kind} named {Hero} lived {home}.",
    "In a land far away, there lived a {size} {kind}. Everyone called {him} {Hero}.",
    "This is the story of {Hero}, a {trait} {size} {kind}.",
)
_LIKES = (
    "{Hero} loved to {hobby}.",
    "Every day, {he} liked to {hobby}.",
    "{He} had {a_thing} that {he} loved very much.",
    "More than anything else, {Hero} liked to {hobby} with {his} friend {Friend}.",
    "{His} best friend was {Friend}, a {friend_trait} {friend_kind}.",
    "{He} and {his} friend {Friend} were always together.",
    "{Hero} did not like to {hobby}, but {he} liked to {other_hobby}.",
)
_STARTS = (
    "One day, {weather}, and {Hero} went out to play {place}.",
    "One morning, {weather}. {Hero} put on {his} shoes and ran outside.",
    "One afternoon, {Hero} and {Friend} met {place}.",
    "It was a special day. {Weather}, and {Hero} could not wait to go out.",
    'One day, {his} {kin} said, "Let us take a walk, {Hero}!" They walked until they were {place}.',
    "On Sunday, {weather}, so {Hero} asked {Friend} to come and play {place}.",
    "When {Hero} woke up, {weather}. {He} looked out of the window and smiled.",
)

_NEWCOMER = (
    "{Place} sat someone whom {he} did not know.|{Place}, {Hero} saw a {friend_trait} {friend_kind} who was all alone.",
    '{Hero} wanted to say hello, but {he} was too shy.|"Hello, my name is {Hero}," {he} said. "Who are you?"',
    '"I am {Friend}," said the {friend_kind}. "I am new here."',
    '"Do you want to play with my {thing}?" asked {Hero}.|{Hero} showed {her} {his} {thing}.',
    "{Friend} was so happy that {she} jumped up and down.|{Friend} nodded, and {she} was not sad any more.",
    "They played until it was dark.|They played {place} the whole day.",
)
"""The one plot in which the hero does not know the friend before."""
_PLOTS: Sequence[Sequence[str]] = (
    (  # something is lost
        "{Hero} had {his} {thing} with {him}.|{He} took {his} {thing} along, as always.",
        "But after a while, {he} saw that it was gone.|Then {he} looked down, and the {thing} was not there!",
        '"Oh no! Where is my {thing}?" {he} cried.|{Hero} felt sad and began to cry.|{He} did not know what to do.',
        '{Friend} came and asked, "What is wrong, {Hero}?"|{Friend} heard {him} and came to help.',
        "They looked {place} and they looked {other_place}.|"
        "{Friend} looked behind the bushes, and {Hero} looked {other_place}.",
        "At last, {Friend} found the {thing} under some leaves.|"
        "Then {Hero} saw something {adjective}. It was the {thing}!",
        '"Thank you for your help," said {Hero}.|{Hero} hugged {Friend} and thanked {her}.',
    ),
    (  # something breaks
        "{Hero} was playing with {a_thing}.|{Friend} gave {him} {a_thing} to play with.",
        "{He} threw it too high, and it fell down and broke.|Suddenly, there was a loud noise. The {thing} was broken!",
        "{Hero} was afraid that {Friend} would be angry.|{He} wanted to hide it, but {he} knew that this was wrong.",
        'So {he} told {his} {kin} the truth.|So {Hero} went to {Friend} and said, "I am sorry. I broke the {thing}."',
        '"You were brave to tell the truth," said {his} {kin}.|{Friend} was not angry at all. {She} smiled at {him}.',
        "Together, they fixed the {thing} with some glue.|"
        "They worked all afternoon, and soon the {thing} was as good as new.",
    ),
    (  # an animal is in need
        "There, {he} heard a small sound.|{Hero} stopped, because someone was calling for help.",
        "It was {an_animal} that could not get out of {an_adjective} box.|"
        "A tiny {animal} was stuck between two stones.",
        '"Please help me," said the {animal}.|The {animal} was cold and very scared.',
        "{Hero} was not strong enough, so {he} called {Friend}.|{Hero} pulled and pulled, but nothing moved.",
        "{He} and {Friend} pulled together, and the {animal} was free.|"
        "Then {Friend} had an idea, and soon the {animal} was free.",
        "They gave the {animal} {a_food} to eat.|The {animal} ate {a_food} and felt much better.",
        "From that day on, the {animal} came to visit {Hero} every week.|The {animal} thanked them and ran home.",
    ),
    (  # something is shared
        "{His} {kin} had given {him} {a_food} for lunch.|{Hero} had {a_food} in {his} bag.",
        "{Hero} was hungry and wanted to eat it all.|It smelled very good.",
        "Then {he} saw {Friend}, who had nothing to eat.|But {Friend} sat alone {place} and looked sad.",
        '"Are you hungry?" asked {Hero}.|"I forgot my lunch," said {Friend}.',
        "{Hero} cut the {food} in two and gave {her} one half.|"
        "{He} thought for a moment. Then {he} shared the {food} with {her}.",
        '{Friend} smiled and said, "You are a good friend."|"This is the best {food} in the world," said {Friend}.',
    ),
    (  # a storm
        "Soon, dark clouds came, and it began to rain.|Suddenly, there was thunder, and the rain came down.",
        "{Hero} was afraid of the thunder.|{Friend} was scared and held {his} hand.",
        '"We must find a dry place," said {Friend}.|"Do not be afraid," said {Hero}. "I am here with you."',
        "They ran and hid {other_place}.|They sat down {other_place} and waited.",
        "They told each other stories until the storm was over.|They sang a song, and the storm did not seem so bad.",
        "When the rain stopped, a rainbow stood in the sky.|After an hour, the sun came out again.",
        "Then {his} {kin} came and took them home.|{Hero} ran home to {his} {kin}.",
    ),
    _NEWCOMER,
    (  # something is learned
        "{Hero} wanted to learn how to {skill}.|{He} wished that {he} could {skill} as well as {Friend}.",
        "{He} tried and tried, but it was too hard.|The first time, {he} could not do it at all.",
        '"I will never learn it," {he} said.|{He} wanted to give up and go home.',
        '"Try again, {Hero}. You can do it!" said {Friend}.|{His} {kin} said, "Everyone has to begin somewhere."',
        "So {he} practised every day, and {Friend} helped {him}.|"
        "{Friend} showed {him} how, and {he} watched with care.",
        "A week later, {Hero} could do it all by {himself}.|At last, {he} did it, and everyone clapped.",
    ),
    (  # things are found
        "{Place}, {he} saw many {things} on the ground.|{Hero} found a bag full of {things}.",
        '"Look at the {things} near the {animal}!" said {Friend}. "They are so {adjective}."|'
        '"The {things} are {adjective}," said {Friend}, "but this {noun} is not."',
        '"Whose {things} are these?" asked {Hero}. "They do not belong to us."|"May we keep them?" asked {Friend}.',
        'An old {animal} came by. "The {things} are mine," it said.|They asked everyone {place}, but nobody knew.',
        "{Hero} gave the {things} back, and the {animal} was very glad.|"
        "In the end, an old {animal} came and thanked them.",
        '"You may each keep one {noun}," said the {animal}.|The {animal} gave {him} {a_food} as a reward.',
    ),
)
_ENDINGS = (
    "{Hero} was very happy.",
    "That night, {Hero} slept well and dreamed of {a_thing}.",
    "{He} went home and told {his} {kin} everything.",
    "From then on, {Hero} and {Friend} were the best of friends.",
    "{His} {kin} was very proud of {him}.",
    "And they lived happily ever after.",
    "{Hero} learned that it is good to be {virtue}.",
    "{He} never forgot that day.",
    "{Hero} and {Friend} laughed, and they went home together.",
)
_VIRTUES = ("kind", "brave", "honest", "patient", "careful", "friendly", "gentle")
_NAMES, _CHILDREN = (_GIRLS, _BOYS), ("girl", "boy")
_PRONOUNS = (("she", "her", "her", "herself"), ("he", "him", "his", "himself"))

_Item = TypeVar("_Item")


def story(numbers: Random) -> str:
    """Return a story of 8 to 14 sentences or so in two or three paragraphs; it ends with a line end."""
    words, plot = _words(numbers), _pick(numbers, _PLOTS)
    known = plot is not _NEWCOMER
    likes, starts = ([text for text in texts if known or "{Friend}" not in text] for texts in (_LIKES, _STARTS))
    begin = [_pick(numbers, _OPENINGS), *(text for text in _some(numbers, likes, 2) if _often(numbers))]
    middle = [_pick(numbers, starts), *(_pick(numbers, step.split("|")) for step in plot)]
    end = [_pick(numbers, _ENDINGS)]
    paragraphs = [begin, middle, end] if _often(numbers) else [begin, [*middle, *end]]
    return "".join(" ".join(text.format_map(words) for text in paragraph) + "\n" for paragraph in paragraphs)


def _words(numbers: Random) -> dict[str, str]:
    """Draw the words for the braces of a story."""
    noun, nouns = _pick(numbers, _THINGS)
    adjective, animal, weather = (_pick(numbers, items) for items in (_ADJECTIVES, _ANIMALS, _WEATHERS))
    place, other_place = _some(numbers, _PLACES, 2)
    food = _pick(numbers, _FOODS)
    words = _characters(numbers) | {
        "kin": _pick(numbers, _KIN),
        "home": _pick(numbers, _HOMES),
        "virtue": _pick(numbers, _VIRTUES),
        "thing": f"{adjective} {noun}",
        "a_thing": _with_article(f"{adjective} {noun}"),
        "noun": noun,
        "things": nouns,
        "adjective": adjective,
        "an_adjective": _with_article(adjective),
        "animal": animal,
        "an_animal": _with_article(animal),
        "food": food,
        "a_food": _with_article(food),
        "place": place,
        "Place": place.capitalize(),
        "other_place": other_place,
        "weather": weather,
        "Weather": weather.capitalize(),
    }
    hobby, other_hobby = (text.format_map(words) for text in _some(numbers, _HOBBIES, 2))
    return words | {"hobby": hobby, "other_hobby": other_hobby, "skill": _pick(numbers, _SKILLS).format_map(words)}


def _characters(numbers: Random) -> dict[str, str]:
    """Return the hero and the friend, who have different names."""
    hero, friend = int(numbers.random() * 2), int(numbers.random() * 2)
    (name, friend_name), (trait, friend_trait) = (
        (first, _pick(numbers, [item for item in others if item != first]))
        for first, others in ((_pick(numbers, _NAMES[hero]), _NAMES[friend]), (_pick(numbers, _TRAITS), _TRAITS))
    )
    (he, him, his, himself), (she, her, *_) = _PRONOUNS[hero], _PRONOUNS[friend]
    return {
        "Hero": name,
        "kind": _kind(numbers, hero),
        "trait": trait,
        "size": _pick(numbers, _SIZES),
        "he": he,
        "him": him,
        "his": his,
        "himself": himself,
        "He": he.capitalize(),
        "His": his.capitalize(),
        "Friend": friend_name,
        "friend_kind": _kind(numbers, friend),
        "friend_trait": friend_trait,
        "she": she,
        "her": her,
        "She": she.capitalize(),
    }


def _kind(numbers: Random, gender: int) -> str:
    return _CHILDREN[gender] if _often(numbers) else _pick(numbers, _ANIMALS)


def _with_article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _often(numbers: Random) -> bool:
    """Return two times in three."""
    return numbers.random() * 3 < 2


def _some(numbers: Random, items: Sequence[_Item], count: int) -> list[_Item]:
    """Different items, in the order in which they are drawn."""
    left = list(items)
    return [left.pop(int(numbers.random() * len(left))) for _ in range(count)]


def _pick(numbers: Random, items: Sequence[_Item]) -> _Item:
    """Return an item; only `Random.random` is used, as it alone gives the same numbers in every version of Python."""
    return items[int(numbers.random() * len(items))]
