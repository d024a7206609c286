"""The tree of draft tokens of speculative decoding: its build-up, and its greedy verification.

Called by sglang/kernels/ops/speculative/spec_tree.py. A tree has `n` nodes; node 0 is the token that is certain. It is
kept as in a binary tree: a node's first child (next_token) and the next child of the same parent (next_sibling), -1
for none. EAGLE-2, section 4 (https://arxiv.org/abs/2406.16858).
"""

import torch

QLEN_ONLY = 1  # layout of the mask: n x n for each request, without columns for the prefix


def build_tree_kernel_efficient_cpu(
    parent_list, selected_index, lengths, mask, positions, retrieve_index, next_token, next_sibling, topk, _depth, n,
    mask_mode,
) -> None:  # fmt: skip
    """Fill mask, positions, retrieve_index, next_token and next_sibling (the last two come filled with -1).

    selected_index: [requests, n - 1], the chosen candidates in ascending order, numbered level by level.
    Candidate c came from expanding node c // topk: 0 is the root, e > 0 the candidate parent_list[request, e].
    mask: flat [requests * n * n], which nodes a node sees: its ancestors and itself.
    A candidate may be chosen without its parent where their scores tie (a token of probability 1): it hangs nowhere
    and is never accepted, as in SGLang's kernel for GPUs.
    """
    if int(mask_mode) != QLEN_ONLY:
        text = f"the CPU stand-in builds tree masks of mode {QLEN_ONLY} only, not {mask_mode}"
        raise NotImplementedError(text)  # on purpose: SGLang asks for the others with GPU kernels alone
    masks = mask.view(-1, n, n)  # [requests, n, n]
    positions = positions.view(-1, n)
    for b, length in enumerate(lengths.tolist()):
        selected = selected_index[b].tolist()
        parents = parent_list[b].tolist()
        node_of = {candidate: i for i, candidate in enumerate(selected, start=1)}
        parent_of = [None]
        for candidate in selected:
            expanded = candidate // topk
            parent_of.append(0 if expanded == 0 else node_of.get(parents[expanded]))
        retrieve_index[b] = torch.arange(b * n, (b + 1) * n)
        for node in range(n - 1, 0, -1):  # backwards: each becomes its parent's first child
            parent = parent_of[node]
            if parent is not None:
                next_sibling[b, node] = next_token[b, parent]
                next_token[b, parent] = node
        masks[b] = False
        for node in range(n):
            depth, ancestor = 0, node
            masks[b, node, 0] = True
            while ancestor:
                masks[b, node, ancestor] = True
                ancestor = parent_of[ancestor]
                depth += 1
            positions[b, node] = length + depth


def verify_tree_greedy_cpu(
    *, predicts, accept_index, accept_token_num, candidates, retrive_index, retrive_next_token, retrive_next_sibling,
    target_predict,
) -> None:  # fmt: skip
    """Walk down each tree as long as a child is what the target would say; fill the first three arguments.

    candidates: [requests, n] draft tokens; target_predict: [requests * n] the target's next token after each node.
    predicts: [requests * n], the target's token at each accepted node; accept_index: [requests, steps + 1], the
    accepted nodes' places in it (-1 comes filled in); accept_token_num: [requests], accepted draft tokens.
    """
    says = target_predict.flatten().tolist()
    token, place, child, sibling = (
        x.tolist() for x in (candidates, retrive_index, retrive_next_token, retrive_next_sibling)
    )
    predicts = predicts.view(-1)
    for b in range(len(token)):
        accepted = [place[b][0]]
        node = 0
        while len(accepted) < accept_index.shape[1]:
            node = child[b][node]
            while node != -1 and token[b][node] != says[accepted[-1]]:
                node = sibling[b][node]
            if node == -1:
                break
            accepted.append(place[b][node])
        for i, at in enumerate(accepted):
            accept_index[b, i] = at
            predicts[at] = says[at]
        accept_token_num[b] = len(accepted) - 1
