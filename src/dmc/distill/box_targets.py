"""What a student should answer at its anchors where teachers have found boxes: Eq. 6 to 8 without anchors in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dmc.models.detector import Candidates
from dmc.models.one_stage import NEVER, OneStage

LOWEST = math.log(NEVER / (1 - NEVER))  # log-odds: targets of all classes that are not there are the same
TIE = 1e-4 * NEVER  # too little to change the order of anchors that some teacher found something at


class Places(NamedTuple):
    """The anchors of one image to be taught."""

    places_S: Tensor
    weights_MS: Tensor  # 1: all that the find says of classes is taught there, 0: nothing of it
    owners_S: Tensor  # the most probable find there
    there_S: Tensor  # whether there is any


class AtAnchors(NamedTuple):
    """The anchors of each image to be taught, and what is there."""

    places_NS: Tensor
    odds: list[Tensor]  # of each teacher, N x S x K
    boxes_NSB: Tensor  # offsets, of the teacher with the most probable class
    box_weights_NS: Tensor  # 0: no teacher found a box there


def at_anchors(
    found: Sequence[Candidates], anchors_A4: Tensor, student: OneStage, count: int, draws_N: Tensor
) -> AtAnchors:
    """Choose the `count` anchors at which teachers found the most probable objects, and tell what they found there.

    A find is taught at the anchors that the student's own training would assign it to. Where several lie, a teacher's
    classes have the scores of its surest. Where it found nothing, they have the lowest one.
    """
    boxes_NM4 = torch.cat([one.boxes_NM4 for one in found], dim=1)
    chances_NM1 = torch.cat([one.odds_NMK.amax(dim=2, keepdim=True) for one in found], dim=1).sigmoid() - NEVER
    each = zip(boxes_NM4, chances_NM1.clamp_min(0), draws_N, strict=True)
    chosen = [best_places(boxes_M4, chances_M1, anchors_A4, student, count, n) for boxes_M4, chances_M1, n in each]
    places_NS, weights_NMS, owners_NS, there_NS = (torch.stack(part) for part in zip(*chosen, strict=True))
    shares = torch.split(weights_NMS, [one.boxes_NM4.shape[1] for one in found], dim=1)
    odds = [surest(one.odds_NMK, share_NMS) for one, share_NMS in zip(found, shares, strict=True)]
    box_weights_NS = weights_NMS.gather(1, owners_NS[:, None])[:, 0] * there_NS
    own_NS4 = anchors_A4[places_NS]
    theirs_NS4 = boxes_NM4.gather(1, owners_NS[..., None].expand_as(own_NS4))
    wanted_NS4 = torch.where(there_NS[..., None], theirs_NS4, own_NS4)
    boxes_MB = student.encoded(wanted_NS4.flatten(0, 1), own_NS4.flatten(0, 1))
    return AtAnchors(places_NS, odds, boxes_MB.view(*places_NS.shape, -1), box_weights_NS)


def best_places(
    boxes_M4: Tensor, chances_M1: Tensor, anchors_A4: Tensor, student: OneStage, count: int, draw: Tensor
) -> Places:
    """Choose the anchors of one image, the nearest ones to the most probable finds first.

    A find has the anchors that are near enough for the student's own training, or at least the nearest. If finds do not
    fill the anchors, the rest is background, drawn by a number of the image.
    """
    near_MA = student.nearness(boxes_M4, anchors_A4)
    nearest_M1 = near_MA.amax(dim=1, keepdim=True)
    enough_M1 = nearest_M1.clamp(1e-6, student.foreground)
    least_M1 = (enough_M1 - student.foreground + student.nothing_below).clamp_min(0)
    slopes_M1 = chances_M1 / (nearest_M1.clamp_min(1e-6) - least_M1)
    # From 0 at the least near anchor to the find's chance at the nearest: the only steps over all finds and anchors.
    objectness_A = torch.addcmul(-least_M1 * slopes_M1, near_MA, slopes_M1).amax(dim=0).clamp_min(0)
    places_S = (objectness_A + TIE * scattered(len(anchors_A4), draw)).topk(min(count, len(anchors_A4))).indices
    above_MS = (near_MA[:, places_S] - least_M1).clamp_min(0)
    weights_MS = (above_MS / (enough_M1 - least_M1)).clamp_max(1)
    return Places(places_S, weights_MS, (above_MS * slopes_M1).argmax(dim=0), objectness_A[places_S] > 0)


def surest(odds_NMK: Tensor, weights_NMS: Tensor) -> Tensor:
    """At each anchor, take the find with the most log-odds above the lowest, times its weight there; weigh them so."""
    above_NMK = odds_NMK.clamp(LOWEST, -LOWEST) - LOWEST
    most_NS1 = (weights_NMS * above_NMK.amax(dim=2, keepdim=True)).argmax(dim=1)[..., None]
    weights_NS1 = weights_NMS.transpose(1, 2).gather(2, most_NS1)
    return above_NMK.gather(1, most_NS1.expand(-1, -1, above_NMK.shape[2])) * weights_NS1 + LOWEST


def scattered(count: int, draw: Tensor) -> Tensor:
    """Give each anchor a number from 0 to 1 that follows no order, and differs with `draw`."""
    mixed_A = (torch.arange(count, device=draw.device) + draw) * 2654435761 % 2**32  # Knuth's multiplicative hash
    return mixed_A.float() / 2**32
