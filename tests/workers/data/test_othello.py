"""Othello: games against open_spiel, the split, the pool, loss and metrics against what is written out here."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyspiel
import pytest
import torch
from scipy import stats
from torch import Tensor

import spaces
from graft.plugins.families import families
from spaces import plugins
from spaces.errors import PluginError
from tests.support.trials import config, trial
from workers.data.othello import games as othello_games
from workers.data.othello.board import Position, after, legal_moves, play, play_by_torch, start
from workers.data.othello.games import pool, training_games, validation_games
from workers.data.tasks import Task
from workers.data.tasks.othello import Othello
from workers.engine.pack import Pack
from workers.numerics import native
from workers.numerics.randomness import Purpose, Streams

PASS = 64
GAME = pyspiel.load_game("othello")
CENTRE = {27, 28, 35, 36}
SQUARE = [square for square in range(64) if square not in CENTRE]
CPU = torch.device("cpu")
ZERO_STEPS = torch.zeros(2, dtype=torch.int64)


def states(games: int, seed: int = 3) -> Tensor:
    return Streams.of(torch.tensor([seed]), Purpose.TRAINING_DATA, 0).words(games)[0]


def streams(*seeds: int) -> Streams:
    return Streams.of(torch.tensor(seeds), Purpose.TRAINING_DATA, 0)


def bits(squares: int) -> list[int]:
    return [square for square in range(64) if squares >> square & 1]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    native.library("othello")  # compiled, if at all, before the folder is another
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pool.cache_clear()
    yield tmp_path / "graft"
    pool.cache_clear()


# --- rules


def test_every_position_of_two_hundred_games_has_the_legal_moves_of_open_spiel() -> None:
    tokens, legal = play(states(200))
    for moves, choices in zip(tokens.tolist(), legal.tolist(), strict=True):
        state = GAME.new_initial_state()
        for move, bitboard in zip(moves, choices, strict=True):
            if not state.is_terminal() and state.legal_actions() == [PASS]:
                state.apply_action(PASS)
            assert bits(bitboard) == ([] if state.is_terminal() else sorted(state.legal_actions()))
            if move:
                state.apply_action(SQUARE[move - 1])
            else:
                assert state.is_terminal()
        assert state.is_terminal()


def following(position: Position) -> Position:
    """All positions one move later."""
    squares = torch.arange(64)
    at, square = ((position.legal[:, None] >> squares) & 1).nonzero(as_tuple=True)
    moves = torch.ones_like(square) << square
    return after(Position(*(boards[at] for boards in position)), moves)


def leaves(state: Any, depth: int) -> int:
    return sum(leaves(state.child(action), depth - 1) for action in state.legal_actions()) if depth else 1


def test_there_are_as_many_games_of_six_moves_as_open_spiel_and_the_literature_count() -> None:
    position, counts = start(1, CPU), []
    for _ in range(6):
        position = following(position)
        counts.append(len(position.own))
    assert counts == [leaves(GAME.new_initial_state(), depth) for depth in range(1, 7)]
    assert counts == [4, 12, 56, 244, 1396, 8200]


def test_a_line_of_six_discs_is_turned_over_and_one_across_the_edge_is_not() -> None:
    own, other = (torch.tensor([sum(1 << square for square in squares)]) for squares in ((0, 23), (*range(1, 7), 24)))
    assert bits(int(legal_moves(own, other))) == [7]
    discs = after(Position(own, other, torch.zeros(1)), torch.tensor([1 << 7])).other
    assert bits(int(discs)) == [*range(8), 23]


@pytest.mark.skipif(not native.available(), reason="no C++ compiler here")
@pytest.mark.parametrize(("games", "plies"), [(1, 60), (7, 60), (8, 12), (3001, 60)])
def test_compiled_games_are_those_of_torch_to_the_bit(games: int, plies: int) -> None:
    compiled, by_torch = play(states(games), plies), play_by_torch(states(games), plies)
    assert torch.equal(compiled.tokens, by_torch.tokens)
    assert torch.equal(compiled.legal, by_torch.legal)


def test_games_are_played_where_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = play(states(50))
    monkeypatch.setattr("workers.data.othello.board.library", lambda _: None)
    assert all(map(torch.equal, play(states(50)), expected))


# --- randomness


def ranks(tokens: Tensor, legal: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Of every move the number of legal ones with a lower square, and of legal ones."""
    square = np.array([0, *SQUARE])[tokens.numpy()]
    choices = (legal.numpy()[..., None] >> np.arange(64)) & 1
    lower = (choices * (np.arange(64) < square[..., None])).sum(-1)
    return lower[tokens != 0], choices.sum(-1)[tokens != 0]


def test_every_legal_move_is_equally_likely() -> None:
    rank, count = ranks(*play(states(8000)))
    for legal in range(2, 16):
        observed = np.bincount(rank[count == legal], minlength=legal)
        assert len(observed) == legal
        assert stats.chisquare(observed).pvalue > 1e-4, legal


def test_games_depend_on_their_seed_alone_and_not_on_their_lane(cache: Path) -> None:
    for task in (Othello(), Othello(games=50)):
        both, alone = task.training(streams(7, 9), 30, ZERO_STEPS), task.training(streams(9), 30, ZERO_STEPS[:1])
        assert torch.equal(both["inputs"][1], alone["inputs"][0])
        assert not torch.equal(both["inputs"][0], both["inputs"][1])
    both, alone = Othello().validation(streams(7, 9), 30), Othello().validation(streams(9), 30)
    assert all(torch.equal(both[name][1], alone[name][0]) for name in ("inputs", "legal"))


# --- batches


def test_targets_follow_inputs_and_the_length_is_cut() -> None:
    batch = Othello(length=17).training(streams(1, 2), 40, ZERO_STEPS)
    assert batch["inputs"].shape == batch["targets"].shape == (2, 40, 17)
    assert torch.equal(batch["inputs"][..., 1:], batch["targets"][..., :-1])
    whole = Othello().training(streams(1, 2), 40, ZERO_STEPS)
    assert torch.equal(batch["targets"], whole["targets"][..., :17])


def test_no_square_is_played_twice_and_a_full_game_plays_all() -> None:
    tokens = play(states(2000)).tokens.numpy()
    for game in tokens:
        moves = game[game > 0]
        assert len(set(moves)) == len(moves)
        assert not game[len(moves) :].any()
    assert 0.97 < (tokens[:, -1] > 0).mean() < 1


def openings(tokens: Tensor, moves: int) -> set[tuple[int, ...]]:
    return set(map(tuple, tokens[:, :moves].tolist()))


def test_no_validated_game_begins_as_one_that_is_trained_on(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the opening's length, and at one of which every opening occurs many times over."""
    fresh, fixed = training_games(states(4000)).tokens, pool(3000, CPU)
    trained = openings(fresh, othello_games.OPENING) | openings(fixed, othello_games.OPENING)
    assert trained.isdisjoint(openings(validation_games(states(4000)).tokens, othello_games.OPENING))
    monkeypatch.setattr(othello_games, "OPENING", 4)
    trained = openings(training_games(states(4000)).tokens, 4)
    validated = openings(validation_games(states(4000)).tokens, 4)
    assert trained.isdisjoint(validated)
    assert len(trained | validated) == 244
    assert 30 < len(validated) < 90


def test_the_task_trains_and_validates_on_the_two_splits() -> None:
    task, words = Othello(), streams(5).words(20)[0]
    assert torch.equal(task.training(streams(5), 20, ZERO_STEPS)["inputs"][0], training_games(words).tokens[:, :-1])
    validation, games = task.validation(streams(5), 20), validation_games(words)
    assert torch.equal(validation["inputs"][0], games.tokens[:, :-1])
    assert torch.equal(validation["legal"][0], games.legal[:, 1:])


# --- the pool


def made_again(games: int) -> Tensor:
    pool.cache_clear()
    return pool(games, CPU)


def test_batches_draw_from_the_pool_and_from_all_of_it(cache: Path) -> None:
    batch = Othello(games=40).training(streams(5), 8000, ZERO_STEPS[:1])
    games, counts = np.unique(batch["inputs"][0].numpy(), axis=0, return_counts=True)
    assert set(map(tuple, games.tolist())) == openings(pool(40, CPU), 59)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_games_of_a_pool_differ_and_other_ones_take_the_place_of_repetitions(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Games that end after three moves, of which 56 can be drawn."""
    monkeypatch.setattr(othello_games, "training_games", lambda states: play(states, 3))
    monkeypatch.setattr(othello_games, "MOVES", 3)
    assert len(openings(pool(50, CPU), 3)) == 50


def test_a_pool_has_the_games_that_files_of_its_name_have(cache: Path) -> None:
    """Where this fails, pools need another seed, or they would be read from files with other games."""
    assert zlib.crc32(pool(1000, CPU).numpy().data) == 2098892332


def test_a_pool_is_read_from_its_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pool(30, CPU).clone()
    monkeypatch.setattr(othello_games, "training_games", None)
    assert torch.equal(made_again(30), first)
    assert [path.name for path in cache.iterdir()] == ["othello-60-30.games"]


@pytest.mark.parametrize("damage", ["cut", "one bit", "empty"])
def test_a_file_that_is_not_whole_is_made_anew(cache: Path, damage: str) -> None:
    first = pool(30, CPU).clone()
    file = cache / "othello-60-30.games"
    whole = file.read_bytes()
    flipped = bytes([whole[0] ^ 1]) + whole[1:]
    file.write_bytes({"cut": whole[:-1], "one bit": flipped, "empty": b""}[damage])
    assert torch.equal(made_again(30), first)
    assert file.read_bytes() == whole


def test_a_pool_needs_no_folder_that_can_be_written(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pool(30, CPU).clone()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "othello-60-30.games"))  # a file, not a folder
    assert torch.equal(made_again(30), first)


# --- loss and metrics


def test_the_loss_is_the_cross_entropy_of_moves_and_not_of_what_follows_a_game() -> None:
    tokens = play(states(3000)).tokens
    games = torch.cat([tokens[tokens[:, -1] == 0][:4], tokens[:4]]).long()
    batch = {"inputs": games[:, :-1], "targets": games[:, 1:]}
    logits = torch.randn(8, 59, 61, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), ignore_index=0)
    torch.testing.assert_close(Othello().loss(logits, batch), expected)


def short_and_full_games() -> dict[str, Tensor]:
    tokens, legal = play(states(3000))
    rows = torch.cat([(tokens[:, -1] == 0).nonzero()[:5, 0], torch.arange(5)])
    assert (tokens[rows, -1] == 0).sum() >= 5
    return {"inputs": tokens[rows, :-1].long(), "legal": legal[rows, 1:]}


def metrics_by_hand(logits: np.ndarray, moves: list[int]) -> dict[str, float]:
    """Equations 16-18 of paper 003 prefix by prefix, with the legal moves of open_spiel."""
    state, rows = GAME.new_initial_state(), []
    for index, move in enumerate(moves):
        if not move:
            break
        state.apply_action(SQUARE[move - 1])
        if not state.is_terminal() and state.legal_actions() == [PASS]:
            state.apply_action(PASS)
        if state.is_terminal():
            break
        legal = {1 + SQUARE.index(square) for square in state.legal_actions()}
        p = np.exp(logits[index] - logits[index].max())
        p /= p.sum()
        exact = np.array([1 / len(legal) if token in legal else 0 for token in range(61)])
        illegal = [token for token in range(61) if token not in legal]
        rows.append((0.5 * np.abs(p - exact).sum(), p[illegal].sum(), float(int(logits[index].argmax()) in illegal)))
    return dict(zip(("tvd", "itp", "itr"), np.mean(rows, axis=0), strict=True))


def test_metrics_equal_the_definitions_also_for_games_that_end_early() -> None:
    batch = short_and_full_games()
    logits = 3 * torch.randn(10, 59, 61, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    metrics = Othello().metrics(logits, batch)
    for row, moves in enumerate(batch["inputs"].tolist()):
        for name, value in metrics_by_hand(logits[row].numpy(), moves).items():
            assert float(metrics[name][row]) == pytest.approx(value, abs=1e-12)


def test_the_exact_answer_scores_zero_and_a_number_that_is_none_is_told() -> None:
    batch = short_and_full_games()
    legal = (batch["legal"][..., None] >> torch.tensor(SQUARE)) & 1
    exact = torch.nn.functional.pad((legal - 1) * 1e4, (1, 0), value=-1e4).double()
    assert all(float(value.abs().max()) < 1e-12 for value in Othello().metrics(exact, batch).values())
    exact[0, 0, 0] = torch.nan
    assert Othello().metrics(exact, batch)["tvd"].isnan().tolist() == [True] + [False] * 9


# --- in the engine


def test_a_packed_trial_has_the_numbers_of_one_alone(cache: Path) -> None:
    configuration = config(steps=4, every=2, batch=6, validation_batch=12, dtype="float32")
    configuration["task"] = {"name": "othello", "length": 20, "games": 100}
    configuration["model"] = {"name": "transformer", "width": 32, "depth": 1, "position": {"name": "rotary"}}
    trials = [trial(number, configuration) for number in range(2)]

    def reports(*together: int) -> dict[tuple[int, int], object]:
        pack = Pack(trials[together[0]], width=2)
        pack.fill([trials[number] for number in together])
        results = [*pack.train(2), *pack.train(2)]
        return {(report.number, report.step): report for report in results}

    packed = reports(0, 1)
    assert {step for _, step in packed} == {2, 4}
    assert reports(1).items() <= packed.items()


def test_the_generalisation_gap_is_recorded() -> None:
    assert Othello(length=15).facts() == {"generalisation_gap": 44, "chance": 0.8565}
    assert (Othello(length=15).context, Othello(length=15).longest) == (15, 59)


def test_a_length_that_leaves_no_move_to_predict_is_refused_in_one_line() -> None:
    with pytest.raises(PluginError, match=r"^task.length: 60 must be an integer in \[1, 59\]$"):
        plugins.build(Task, {"name": "othello", "length": 60})


@pytest.mark.long
def test_the_space_has_table_2() -> None:
    space, coordinates = spaces.load("othello", families()), np.random.default_rng(7)
    drawn = [space.sample(number, lambda _: coordinates.random()).config for number in range(4000)]
    lengths = np.bincount([setting["task"]["length"] for setting in drawn], minlength=60)
    assert not lengths[:15].any()
    assert stats.chisquare(lengths[15:]).pvalue > 1e-3
    highest = {"embedding_dropout": 0.5, "weight_dropout": 0.2, "attention_dropout": 0.3, "mlp_dropout": 0.3}
    for field, high in highest.items():
        rates = [setting["model"][field] for setting in drawn]
        assert stats.kstest(rates, stats.uniform(0, high).cdf).pvalue > 1e-3
