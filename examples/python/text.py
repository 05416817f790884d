#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A language model whose layers slide or do not (Gemma 3, gpt-oss, Mistral, StreamingLLM): a
small one with random weights, written for its in-process cache. One line makes its cache
kvwheel's."""

import argparse
import math

import inprocess
import torch

import kvwheel
from kvwheel.families import TextCache

Q_HEADS, HEADS, HEAD_DIM = 4, 2, 8
WIDTH = Q_HEADS * HEAD_DIM
VOCABULARY = 50


class Model:
    """Blocks of grouped-query attention. layers: the window of each, None: full."""

    def __init__(self, layers, sink_logits=False, softcap=0.0, is_streaming=False, seed=4):
        generator = torch.Generator().manual_seed(seed)

        def weight(rows, columns):
            return torch.randn(rows, columns, generator=generator) / math.sqrt(rows)

        self.layers, self.softcap, self.is_streaming = layers, softcap, is_streaming
        self.weights = [{"q": weight(WIDTH, WIDTH), "k": weight(WIDTH, HEADS * HEAD_DIM),
                         "v": weight(WIDTH, HEADS * HEAD_DIM), "o": weight(WIDTH, WIDTH)}
                        for _ in layers]
        self.sinks = ([torch.randn(Q_HEADS, generator=generator) for _ in layers]
                      if sink_logits else [None] * len(layers))
        self.embedding = weight(VOCABULARY, WIDTH) * 7
        # Local layers have another base than global ones, as in Gemma 3.
        self.local = kvwheel.Rope.line(512, HEAD_DIM, 1e4)
        self.whole = kvwheel.Rope.line(512, HEAD_DIM, 1e6)

    def __call__(self, ids, cache, first, pieces=False):
        """Logits of [batch, tokens], whose first row is `first`; by group where the cache
        says so for each."""
        x = self.embedding[ids]
        for layer, (w, window) in enumerate(zip(self.weights, self.layers)):
            rope = self.local if window else self.whole
            q, k, v = (torch.tanh(x) @ w[name] for name in "qkv")
            q = q.reshape(*ids.shape, Q_HEADS, HEAD_DIM)
            k, v = (part.reshape(*ids.shape, HEADS, HEAD_DIM) for part in (k, v))
            is_raw = self.is_streaming and window
            if not is_raw:
                q, k = rope.rotate(q, first), rope.rotate(k, first)
            if pieces:
                cache[layer].store(k, v)
            else:
                keys, values = cache[layer].update(k, v)
            if is_raw:
                q = rope.rotate(q, len(cache[layer].positions) - ids.shape[1])
            if pieces:
                out = cache[layer].attend(q, rope=rope if is_raw else None,
                                          sink_logits=self.sinks[layer], softcap=self.softcap)
            else:
                if is_raw:
                    keys = rope.rotate(keys, cache[layer].positions)
                out = attend(q, keys, values, cache[layer].mask(ids.shape[1]),
                             self.sinks[layer], self.softcap)
            x = x + out.flatten(-2) @ w["o"]
        return x @ self.embedding.T / 7


def attend(q, k, v, seen, sinks=None, softcap=0.0):
    k, v = (part.repeat_interleave(q.shape[2] // part.shape[2], 2) for part in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen, -math.inf)
    if sinks is not None:  # a column that takes its share and has no value
        column = sinks[None, :, None, None].expand(*scores.shape[:3], 1)
        return torch.einsum("bhqk,bkhd->bqhd",
                            torch.cat([scores, column], -1).softmax(-1)[..., :-1], v)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


def generate(cache, model, prompt, n_tokens, chunk, pieces=False, drafts=0):
    """The prompt by chunks, then greedy tokens. drafts: guess so many tokens ahead in each
    step, and take back those that were wrong. Returns the logits of every step."""
    outputs, at = [], 0

    def step(ids, n=None):
        cache.begin(ids.shape[1])
        outputs.append(model(ids, cache, at, pieces))
        cache.commit(n)
        return outputs[-1]

    for part in prompt.split(chunk, 1):
        logits = step(part)
        at += part.shape[1]
    for number in range(n_tokens):
        token = logits[:, -1:].argmax(-1)
        if not drafts:
            logits = step(token)
            at += 1
            continue
        guess = torch.cat([token] + [(token + i) % VOCABULARY for i in range(1, drafts)], 1)
        logits = step(guess, 1 + number % drafts if number % 2 else None)
        accepted = 1 + number % drafts
        if number % 2 == 0:  # all were committed: go back
            cache.rollback(at + accepted)
        logits = logits[:, :accepted]
        at += accepted
    return outputs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--inprocess", action="store_true", help="the model's own cache")
    options = parser.parse_args()
    layers = [16, None, 16, None]  # windows; gpt-oss: every other layer slides
    if options.inprocess:
        cache = inprocess.TextCache(layers)
    else:
        cache = TextCache(TextCache.spec("text-example", layers, HEADS, HEAD_DIM, context=128,
                                         chunk=8))  # the one line
    prompt = torch.arange(20)[None]
    outputs = generate(cache, Model(layers, sink_logits=True), prompt, options.tokens, 8)
    print(f"{options.tokens} tokens, checksum {outputs[-1].abs().sum():.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
