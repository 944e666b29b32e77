"""How a step's rows are gathered: decode rows in groups of like length, prefill rows one by one. Pure arithmetic."""

from collections.abc import Iterable
from dataclasses import dataclass

from pagefleet_kernels.paged_attention.batch import AttentionBatch, BatchRow

# A group's rows are padded to its longest; this many spare pages in a group cost less than one more group.
_SPARE_PAGES = 64


@dataclass(frozen=True, slots=True)
class GatherRow:
    """A row's context (as far as its window reaches) as pages, the first of which holds position `first_position`.
    Positions from `begin` up to `end` are seen by at least one query."""

    first_token: int
    num_tokens: int
    start_position: int
    pages: tuple[int, ...]
    first_position: int
    begin: int
    end: int


def gather_row(row: BatchRow, first_token: int, block_size: int, window: int | None) -> GatherRow:
    """Return what the row reads: all its context, or the pages that its first query's window reaches."""
    begin = 0 if window is None else max(0, row.start_position + 1 - window)
    end = row.context_length
    first_page = begin // block_size
    pages = row.block_table[first_page : -(-end // block_size)]
    return GatherRow(first_token, row.num_tokens, row.start_position, pages, first_page * block_size, begin, end)


def split_rows(batch: AttentionBatch, window: int | None) -> tuple[list[list[GatherRow]], list[GatherRow]]:
    """Return the step's decode rows (one query) in groups of like length, and its prefill rows."""
    decodes: list[GatherRow] = []
    prefills: list[GatherRow] = []
    first_token = 0
    for row in batch.rows:
        gathered = gather_row(row, first_token, batch.block_size, window)
        (decodes if row.num_tokens == 1 else prefills).append(gathered)
        first_token += row.num_tokens
    return group_by_length(decodes), prefills


def group_by_length(rows: Iterable[GatherRow]) -> list[list[GatherRow]]:
    """Group rows so that padding each to its group's longest stays small: below a quarter of the group's own
    pages, or below a fixed number of pages that costs less than another group would."""
    groups: list[list[GatherRow]] = []
    own_pages = 0
    for row in sorted(rows, key=lambda row: -len(row.pages)):
        if groups:
            group = groups[-1]
            padded = len(group[0].pages) * (len(group) + 1)
            spare = padded - own_pages - len(row.pages)
            if spare <= max(_SPARE_PAGES, padded // 5):
                group.append(row)
                own_pages += len(row.pages)
                continue
        groups.append([row])
        own_pages = len(row.pages)
    return groups
