"""The configuration of a model that Graft trained."""

from transformers import PreTrainedConfig


class GraftConfig(PreTrainedConfig):
    """`network`: the classes of `network_graft` and their fields; `shapes`: of parameters by name.

    `own_vocabulary`: number of tokens that the network knows, if the tokenizer has others; or None.
    """

    model_type = "graft"

    def __init__(self, network=None, shapes=None, vocab_size=0, own_vocabulary=None, **rest):
        self.network = network
        self.shapes = shapes
        self.vocab_size = vocab_size
        self.own_vocabulary = own_vocabulary
        super().__init__(**{"use_cache": False, "tie_word_embeddings": False, **rest})
