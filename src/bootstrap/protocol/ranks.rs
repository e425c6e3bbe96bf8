//! Lists of ranks as text: short, whatever their number.

/// The most ranges that a list shows.
const RANGES_MAX: usize = 12;

/// `0, 3, 7-9 and 120 more`: ascending ranks, with runs joined and the list bounded.
pub fn list(ranks: impl IntoIterator<Item = u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    let mut more = 0usize;
    for rank in ranks {
        let full = ranges.len() == RANGES_MAX;
        match ranges.last_mut() {
            Some((_, last)) if rank == *last + 1 && more == 0 => *last = rank,
            _ if full => more += 1,
            _ => ranges.push((rank, rank)),
        }
    }
    let shown: Vec<String> = ranges.iter().map(|(first, last)| range(*first, *last)).collect();
    let shown = shown.join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

fn range(first: u32, last: u32) -> String {
    match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    }
}

/// `rank 3` or `ranks 3, 5-7`, as [`list`].
pub fn name(ranks: &[u32]) -> String {
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", list(ranks.iter().copied()))
}
