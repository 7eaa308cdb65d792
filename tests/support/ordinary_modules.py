"""Thirty ordinary modules of torch, as somebody's own models: what they compute between an embedding and a readout.

Each is a function of its sizes that gives a module over `[N, s, d]`. `write` makes a plug-in file of one of them.
"""

from __future__ import annotations

from pathlib import Path

_HEAD = '''\
from dataclasses import dataclass
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from spaces.plugins.fields import size
from workers.networks.modules import ModuleModel


def causal(length):
    return torch.full((length, length), float("-inf")).triu(1)


def positions(table):
    return nn.Parameter(0.1 * torch.randn(table))


class Body(nn.Module):
    def __init__(self, d, s):
        super().__init__()
        self.d = d
{build}

    def forward(self, x):
        n, s, d = x.shape
{run}


class Network(nn.Module):
    def __init__(self, tokens, d, length):
        super().__init__()
        self.embedding = nn.Embedding(tokens, d)
        self.body = Body(d, length)
        self.readout = nn.Linear(d, tokens)

    def forward(self, inputs):
        x = self.embedding(inputs)
        before = F.pad(x, (0, 0, 1, 0))[:, :-1]
        return self.readout(x + self.body(x + 0.5 * before.cumsum(1)))


@dataclass(frozen=True, kw_only=True)
class {title}(ModuleModel):
    """{title}, an ordinary module."""

    width: int = size(8)

    @property
    def causal(self):
        return True

    def module(self, task):
        return Network(task.tokens, self.width, task.longest)
'''

MODULES: dict[str, tuple[str, str]] = {
    "layer_norm": ("self.norm = nn.LayerNorm(d)", "return self.norm(x).tanh()"),
    "layer_norm_plain": ("self.map = nn.Linear(d, d)", "return F.layer_norm(self.map(x), (d,))"),
    "layer_norm_no_bias": ("self.norm = nn.LayerNorm(d, bias=False)", "return F.gelu(self.norm(x))"),
    "layer_norm_two_axes": (
        "self.a = nn.Linear(d, d)\nself.weight = nn.Parameter(torch.ones(2, d // 2) + 0.1 * torch.randn(2, d // 2))",
        "return F.layer_norm(self.a(x).unflatten(-1, (2, -1)), (2, d // 2), self.weight).flatten(-2)",
    ),
    "rms_norm": ("self.norm = nn.RMSNorm(d)", "return F.silu(self.norm(x))"),
    "group_norm": ("self.norm = nn.GroupNorm(2, d)", "return self.norm(x.reshape(n * s, d)).reshape(n, s, d).sin()"),
    "instance_norm": (
        "self.map = nn.Linear(d, d)",
        "return F.instance_norm(self.map(x).reshape(n * s, 2, d // 2)).reshape(n, s, d)",
    ),
    "conv1d": (
        "self.conv = nn.Conv1d(d, d, 3)",
        "return F.relu(self.conv(F.pad(x.transpose(1, 2), (2, 0)))).transpose(1, 2)",
    ),
    "depthwise_conv": (
        "self.conv = nn.Conv1d(d, d, 4, groups=d)",
        "return F.silu(self.conv(F.pad(x.mT, (3, 0)))).mT",
    ),
    "gru_cell": (
        "self.cell = nn.GRUCell(d, d)",
        "h, all = x.new_zeros(n, d), []\nfor one in x.unbind(1):\n    h = self.cell(one, h)\n    all.append(h)\n"
        "return torch.stack(all, 1)",
    ),
    "lstm_cell": (
        "self.cell = nn.LSTMCell(d, d)",
        "h, c, all = x.new_zeros(n, d), x.new_zeros(n, d), []\nfor one in x.unbind(1):\n"
        "    h, c = self.cell(one, (h, c))\n    all.append(h)\nreturn torch.stack(all, 1)",
    ),
    "rnn": ("self.rnn = nn.RNN(d, d, batch_first=True)", "return self.rnn(x)[0]"),
    "gru": ("self.rnn = nn.GRU(d, d, batch_first=True)", "return self.rnn(x)[0]"),
    "multihead_attention": (
        "self.attention = nn.MultiheadAttention(d, 2, batch_first=True)",
        "return self.attention(x, x, x, attn_mask=causal(s).to(x), need_weights=False)[0]",
    ),
    "multihead_attention_weights": (
        "self.attention = nn.MultiheadAttention(d, 2, batch_first=True)",
        "return self.attention(x, x, x, attn_mask=causal(s).to(x))[0]",
    ),
    "transformer_encoder": (
        "layer = nn.TransformerEncoderLayer(d, 2, 2 * d, dropout=0.0, batch_first=True)\n"
        "self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)",
        "return self.encoder(x, mask=causal(s).to(x))",
    ),
    "transformer_pre_norm": (
        "self.layer = nn.TransformerEncoderLayer(d, 2, d, dropout=0.0, activation='gelu', batch_first=True, "
        "norm_first=True)",
        "return self.layer(x, src_mask=causal(s).to(x))",
    ),
    "scaled_dot_product": (
        "self.qkv = nn.Linear(d, 3 * d)",
        "q, k, v = (one.unflatten(-1, (2, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))\n"
        "return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, s, d)",
    ),
    "mixer": (
        "self.norm = nn.LayerNorm(d)\nself.mix = nn.Parameter(0.3 * torch.randn(s, s))\n"
        "self.mlp = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))",
        "x = x + torch.einsum('ts,nsd->ntd', self.mix[:s, :s].tril(), self.norm(x))\nreturn x + self.mlp(x)",
    ),
    "einsum": (
        "self.a = nn.Parameter(0.3 * torch.randn(2, d, d))",
        "return torch.einsum('nsd,hde,nse->nsh', x, self.a, x).repeat_interleave(d // 2, -1)",
    ),
    "cumsum": ("self.map = nn.Linear(d, d)", "return self.map(x).cumsum(1) / torch.arange(1, s + 1)[:, None]"),
    "cummax": ("self.map = nn.Linear(d, d)", "return self.map(x).cummax(1).values"),
    "logcumsumexp": ("self.map = nn.Linear(d, d)", "return torch.logcumsumexp(self.map(x), 1)"),
    "scatter": (
        "self.map = nn.Linear(d, d)",
        "index = torch.arange(d).flip(0).expand(n, s, d)\nreturn torch.zeros_like(x).scatter(2, index, self.map(x))",
    ),
    "scatter_add": (
        "self.map = nn.Linear(d, d)",
        "index = (torch.arange(d) // 2).expand(n, s, d)\n"
        "return torch.zeros_like(x).scatter_add(2, index, self.map(x).sin())",
    ),
    "index_put": (
        "self.map = nn.Linear(d, d)",
        "out = x.clone()\nout[:, :, torch.tensor([0, 2])] = self.map(x)[:, :, :2]\nreturn out",
    ),
    "index_select": (
        "self.map = nn.Linear(d, d)",
        "return self.map(x).index_select(2, torch.arange(d).flip(0)) * x[..., torch.tensor([1] * d)]",
    ),
    "softmax_variants": (
        "self.map = nn.Linear(d, 4 * d)",
        "a, b, c, e = self.map(x).chunk(4, -1)\n"
        "return a.softmax(-1) + b.log_softmax(-1).sigmoid() + F.softmin(c, -1) + F.softplus(e).sqrt()",
    ),
    "glu_and_friends": (
        "self.map = nn.Linear(d, 2 * d)\nself.act = nn.PReLU()",
        "y = F.glu(self.map(x), -1)\nreturn F.elu(y) + F.hardswish(y) + F.mish(y) + F.leaky_relu(y) + self.act(y)",
    ),
    "bilinear": ("self.map = nn.Bilinear(d, d, d)", "return self.map(x, x.sin())"),
    "weight_norm": (
        "self.map = nn.utils.parametrizations.weight_norm(nn.Linear(d, d))",
        "return self.map(x)",
    ),
    "sorted_topk": (
        "self.map = nn.Linear(d, d)",
        "y = self.map(x)\ntop = y.topk(3, -1).values.sum(-1, keepdim=True)\nreturn y.sort(-1).values * top",
    ),
    "gated_recurrence": (
        "self.gate, self.map = nn.Linear(d, d), nn.Linear(d, d)",
        "a, u, h, all = self.gate(x).sigmoid(), self.map(x), x.new_zeros(n, d), []\n"
        "for one, gate in zip(u.unbind(1), a.unbind(1)):\n    h = gate * h + (1 - gate) * one\n    all.append(h)\n"
        "return torch.stack(all, 1)",
    ),
    "lstm": ("self.rnn = nn.LSTM(d, d, batch_first=True)", "return self.rnn(x)[0]"),
}
"""Name -> statements that build the body, and statements that run it on x [n, s, d]."""

REFUSED: dict[str, tuple[str, str, str]] = {
    "dropout": ("self.drop = nn.Dropout(0.1)", "return self.drop(x)", "draws random numbers"),
    "batch_norm": (
        "self.norm = nn.BatchNorm1d(d)",
        "return self.norm(x.reshape(n * s, d)).reshape(n, s, d)",
        "changes its buffer",
    ),
    "control_flow": (
        "self.map = nn.Linear(d, d)",
        "y = self.map(x)\nif y.sum() > 0:\n    y = -y\nreturn y",
        "decides by a number that it computed",
    ),
}
"""Name -> the same, and what the one line says of it."""


def write(folder: Path, name: str) -> Path:
    """Return the plug-in file `own_<name>.py` of a module."""
    build, run, *_ = MODULES.get(name) or REFUSED[name]
    title = "Own" + "".join(word.capitalize() for word in name.split("_"))

    def indented(text: str) -> str:
        return "\n".join(f"        {line}" for line in text.splitlines())

    file = folder / f"own_{name}.py"
    file.write_text(_HEAD.format(build=indented(build), run=indented(run), title=title))
    return file
