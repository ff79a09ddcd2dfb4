"""Slow oracles written from the definitions alone: visibility of a step's rows, attention, lookahead decoding."""

import random

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.fafo.tree import GuessTree

Role = tuple  # ("root",), ("guess", tokens so far), ("window", row, column)


def roles_of(tree: GuessTree, window_rows: list[list[int]]) -> list[Role]:
    """The role of each row of a step, in the order of the layout."""
    paths: list[tuple[int, ...]] = [()]
    for row in range(1, len(tree)):
        paths.append((*paths[tree.parents[row]], tree.tokens[row]))
    window = [("window", r, i) for r, row in enumerate(window_rows) for i in range(len(row)) if (r, i) != (0, 0)]
    return [("root",), *(("guess", path) for path in paths[1:]), *window]


def sees(a: Role, b: Role) -> bool:
    """Whether a row of role `a` sees one of role `b` of the same step."""
    if b == ("root",):
        return True
    if a[0] != b[0]:
        return False
    if a[0] == "guess":
        return a[1][: len(b[1])] == b[1]
    (_, row, column), (_, other_row, other_column) = a, b
    if other_row == 0:
        return other_column <= column
    return other_column == column and other_row <= row


def dense_attention(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scaling: float) -> Tensor:
    """One masked softmax over everything.

    query: [batch, heads, rows, head_dim]; keys, values: [batch, kv_heads, n, head_dim]; visible: [heads, rows, n].
    """
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    scores = (query @ keys.mT * scaling).masked_fill(~visible, -torch.inf)
    return scores.softmax(dim=-1) @ values


class Lookahead:
    """Lookahead decoding without a cache: each step runs all text and all rows through the unchanged model.

    The window is kept as {(row, column): token}, the pool as a list of n-grams, newest last.
    """

    def __init__(self, model: PreTrainedModel, prompt: list[int], level: int, window: int, n_guesses: int, seed: int):
        self.model, self.text = model, list(prompt)
        self.level, self.width, self.n_guesses = level, window, n_guesses
        self.prompt, self.random = list(prompt), random.Random(seed)
        self.pool: list[tuple[int, ...]] = []
        self.note_text(0)
        n_first = window + level - 2
        self.window = {(0, i + 1): t for i, t in enumerate(self.random.choices(self.prompt, k=n_first - 1))}
        self.window[0, 0] = prompt[-1]
        self.n_columns, self.n_rows = n_first, 1

    def note(self, ngram: tuple[int, ...]) -> None:
        self.pool = [known for known in self.pool if known != ngram] + [ngram]
        of_key = [known for known in self.pool if known[0] == ngram[0]]
        if len(of_key) > self.n_guesses:
            self.pool.remove(of_key[0])

    def note_text(self, start: int) -> None:
        for end in range(start + 1, len(self.text) + 1):
            if end >= self.level:
                self.note(tuple(self.text[end - self.level : end]))

    def step(self, n_left: int) -> int:
        """One step; returns how many tokens it added."""
        c = len(self.text) - 1
        guesses = [n[1:][: n_left - 1] for n in reversed(self.pool) if n[0] == self.text[-1]]
        tree = GuessTree(self.text[-1], guesses)
        rows = [[self.window[r, i] for i in range(self.n_columns)] for r in range(self.n_rows)]
        roles = roles_of(tree, rows)
        predicted = self.predict(roles)
        last = [
            ("root",) if (self.n_rows, i) == (1, 0) else ("window", self.n_rows - 1, i) for i in range(self.n_columns)
        ]
        new = [predicted[role] for role in last]

        accepted: tuple[int, ...] = ()
        while (longer := (*accepted, predicted[("guess", accepted) if accepted else ("root",)])) and (
            ("guess", longer) in predicted
        ):
            accepted = longer
        bonus = predicted[("guess", accepted) if accepted else ("root",)]
        self.text += [*accepted, bonus]

        was_full = self.n_rows == self.level - 1
        if was_full:
            for i in range(self.n_columns):
                self.note((*(self.window[r, i] for r in range(self.n_rows)), new[i]))
        self.note_text(c + 1)

        by_position = {(r, c + i + r): t for (r, i), t in self.window.items()}
        by_position |= {(self.n_rows, c + i + self.n_rows): t for i, t in enumerate(new)}
        if was_full:
            by_position = {(r - 1, p): t for (r, p), t in by_position.items()}
        else:
            self.n_rows += 1
            self.n_columns -= 1
        c = len(self.text) - 1
        old = {(r, p - r - c): t for (r, p), t in by_position.items()}
        self.window = {}
        for r in range(self.n_rows):
            missing = [i for i in range(self.n_columns) if (r, i) not in old]
            drawn = iter(self.random.choices(self.prompt, k=len(missing)))
            for i in range(self.n_columns):
                self.window[r, i] = old[r, i] if (r, i) in old else next(drawn)
        self.window[0, 0] = self.text[-1]
        return len(accepted) + 1

    def predict(self, roles: list[Role]) -> dict[Role, int]:
        """The token that the model puts after each row."""
        c = len(self.text) - 1
        tokens, positions = [], []
        for role in roles:
            if role[0] == "root":
                tokens.append(self.text[-1])
                positions.append(c)
            elif role[0] == "guess":
                tokens.append(role[1][-1])
                positions.append(c + len(role[1]))
            else:
                tokens.append(self.window[role[1], role[2]])
                positions.append(c + role[1] + role[2])
        past = torch.ones(c, c).tril()
        among_new = torch.tensor([[float(sees(a, b)) for b in roles] for a in roles])
        visible = torch.cat(
            [
                torch.cat([past, torch.zeros(c, len(roles))], 1),
                torch.cat([torch.ones(len(roles), c), among_new], 1),
            ]
        )
        mask = torch.zeros_like(visible).masked_fill(visible == 0, -torch.inf)
        with torch.no_grad():
            logits = self.model(
                input_ids=torch.tensor([self.text[:-1] + tokens]),
                position_ids=torch.tensor([list(range(c)) + positions]),
                attention_mask=mask[None, None],
                use_cache=False,
            ).logits[0, c:]
        return dict(zip(roles, logits.argmax(-1).tolist(), strict=True))
