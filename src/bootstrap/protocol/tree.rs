//! The tree over which blocks travel: every subtree is a contiguous range of ranks.
//!
//! A launcher numbers the ranks of a host in a row, so most edges stay inside a host.

use std::ops::Range;

/// Children of a rank at most. Eight keeps the depth at 2 for 64 ranks and at 5 for 10,000.
pub const ARITY: u32 = 8;

/// A rank's place in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreePlace {
    /// The ranks below this one, with itself as first.
    pub span: Range<u32>,
    /// The rank above; `None` for rank 0.
    pub parent: Option<u32>,
    /// The subtrees of the children; each child is the first of its range.
    pub children: Vec<Range<u32>>,
}

/// The place of `rank` among `nranks`: walks down from rank 0, whose range is split among its children.
pub fn place(rank: u32, nranks: u32) -> TreePlace {
    assert!(rank < nranks, "rank {rank} of {nranks}");
    let mut span = 0..nranks;
    let mut parent = None;
    loop {
        let children = split(&span);
        if span.start == rank {
            return TreePlace { span, parent, children };
        }
        parent = Some(span.start);
        span = children.into_iter().find(|child| child.contains(&rank)).expect("the children cover the span");
    }
}

/// The ranks above `rank`, from rank 0 down to its parent.
pub fn above(rank: u32, nranks: u32) -> Vec<u32> {
    let mut above = Vec::new();
    let mut span = 0..nranks;
    while span.start != rank {
        above.push(span.start);
        span = split(&span).into_iter().find(|child| child.contains(&rank)).expect("the children cover the span");
    }
    above
}

/// The ranges of the children of the first rank of `span`: nearly equal parts of what is below it.
fn split(span: &Range<u32>) -> Vec<Range<u32>> {
    let below = span.end - span.start - 1;
    let parts = below.min(ARITY);
    let mut start = span.start + 1;
    (0..parts)
        .map(|part| {
            let size = below / parts + u32::from(part < below % parts);
            start += size;
            start - size..start
        })
        .collect()
}
