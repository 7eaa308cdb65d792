"""A language model that Graft trained, for Hugging Face transformers: logits, loss, generation."""

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_graft import GraftConfig
from .network_graft import build

UNREACHED = -1e4
"""The logit of a token that the network does not know."""


class GraftForCausalLM(PreTrainedModel, GenerationMixin):
    """Logits [N, s, v] of what follows each position, from tokens [N, s]. It keeps no cache."""

    config_class = GraftConfig

    def __init__(self, config):
        super().__init__(config)
        self.plan = build(config.network)
        self.network = nn.Module()
        for name, shape in config.shapes.items():
            *folders, last = name.split(".")
            module = self.network
            for folder in folders:
                if not hasattr(module, folder):
                    module.add_module(folder, nn.Module())
                module = module.get_submodule(folder)
            module.register_parameter(last, nn.Parameter(torch.empty(shape)))
        if config.own_vocabulary is not None:
            # The network's number for each token; `own_vocabulary` for a token that it lacks.
            self.register_buffer("own_tokens", torch.zeros(config.vocab_size, dtype=torch.int64))
        self.post_init()

    def forward(self, input_ids, attention_mask=None, labels=None, **_):
        """Return logits and, with `labels` [N, s], the loss of all but the first; -100 skips one.

        `attention_mask` [N, s]: 0 for padding, which may stand at either end of a sequence.
        """
        longest = getattr(self.config, "learned_positions", None)
        if longest and input_ids.shape[1] > longest:
            raise ValueError(f"{input_ids.shape[1]} tokens are more than the {longest} positions that were learned")
        if attention_mask is None or attention_mask.ndim != 2 or attention_mask.all():
            logits = self._logits(input_ids)
        elif getattr(self.config, "counts_all_keys", False):
            logits = self._logits_alone(input_ids, attention_mask.bool())
        else:
            logits = self._logits_of_padded(input_ids, attention_mask.int())
        loss = None
        if labels is not None:
            guesses = logits[:, :-1].flatten(0, 1).float()
            loss = nn.functional.cross_entropy(guesses, labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **_):
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def _logits_of_padded(self, input_ids, mask):
        if mask[:, 0].all():
            return self._logits(input_ids)
        # Each sequence is moved to the start, where it sees no padding, and its logits back.
        length = input_ids.shape[1]
        before = mask.argmax(-1, keepdim=True)
        position = torch.arange(length, device=input_ids.device)
        logits = self._logits(input_ids.gather(1, (position + before).clamp(max=length - 1)))
        back = (position - before).clamp(min=0)[..., None].expand(-1, -1, logits.shape[-1])
        return logits.gather(1, back)

    def _logits_alone(self, input_ids, mask):
        """Return the logits of each sequence without its padding, whose own are 0."""
        sequences = [row[seen] for row, seen in zip(input_ids, mask, strict=True) if seen.any()]
        found = torch.cat([self._logits(sequence[None])[0] for sequence in sequences])
        logits = found.new_zeros(*input_ids.shape, found.shape[-1])
        logits[mask] = found
        return logits

    def _logits(self, input_ids):
        vocabulary = self.config.own_vocabulary
        if vocabulary is None:
            return self.plan.outputs(self._parameters_by_name(), {"inputs": input_ids}, {})
        # A token that the network lacks is read as the end of a text.
        tokens = self.own_tokens[input_ids].clamp(max=vocabulary - 1)
        logits = self.plan.outputs(self._parameters_by_name(), {"inputs": tokens}, {})
        unknown = logits.new_full((*logits.shape[:-1], 1), UNREACHED)
        return torch.cat([logits, unknown], -1)[..., self.own_tokens]

    def _parameters_by_name(self):
        return dict(self.network.named_parameters())
