//! The words of `NCCL_ALGO` and `NCCL_PROTO`: which algorithms and protocols a function may use. Pure.
//!
//! Sections joined by `;`, each `[function:]list`. A list is names joined by `,`, with `^` in front for all but
//! these. Only the first section may name no function: it is for all that have no section of their own.

use crate::plan::algorithm::Algo;
use crate::plan::call::Func;
use crate::plan::layout::Proto;

/// The names of algorithms; those of NCCL's that are not built stand for nothing.
const ALGOS: [(&str, u8); 9] = [
    ("tree", 1 << Algo::Tree as u8),
    ("ring", 1 << Algo::Ring as u8),
    ("collnetdirect", 0),
    ("collnetchain", 0),
    ("nvls", 0),
    ("nvlstree", 0),
    ("pat", 1 << Algo::Pat as u8),
    ("direct", 1 << Algo::Direct as u8),
    ("direct2", 1 << Algo::TwoStep as u8),
];
/// The names of protocols.
const PROTOS: [(&str, u8); 3] =
    [("LL", 1 << Proto::Ll as u8), ("LL128", 1 << Proto::Ll128 as u8), ("Simple", 1 << Proto::Simple as u8)];
/// The functions that a section can name: those that have more than one algorithm.
pub const FUNCTIONS: [Func; 5] = [Func::Broadcast, Func::Reduce, Func::AllGather, Func::ReduceScatter, Func::AllReduce];

/// The algorithms that `NCCL_ALGO=words` leaves to a function: bits `1 << algo`.
///
/// # Errors
/// A text that names the word which is not understood.
pub(super) fn algorithms(words: &str, func: Func) -> Result<u8, String> {
    mask(words, &ALGOS, func).map_err(|word| format!("{word}; known are {}", known(&ALGOS)))
}

/// The protocols that `NCCL_PROTO=words` leaves to a function: bits `1 << proto`.
///
/// # Errors
/// A text that names the word which is not understood.
pub(super) fn protocols(words: &str, func: Func) -> Result<u8, String> {
    mask(words, &PROTOS, func).map_err(|word| format!("{word}; known are {}", known(&PROTOS)))
}

fn known(names: &[(&str, u8)]) -> String {
    names.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

fn mask(words: &str, names: &[(&str, u8)], func: Func) -> Result<u8, String> {
    let mut allowed = names.iter().fold(0, |all, (_, bits)| all | bits);
    for (place, section) in words.split(';').enumerate() {
        let (function, words) = match section.split_once(':') {
            Some((name, words)) => (Some(function(name)?), words),
            None if place == 0 => (None, section),
            None => {
                return Err(format!("\"{}\" names no function, which only the first section may do", section.trim()));
            }
        };
        let chosen = list(words, names)?;
        if function.is_none_or(|named| named == func) {
            allowed = chosen;
        }
    }
    Ok(allowed)
}

fn function(name: &str) -> Result<Func, String> {
    let name = name.trim();
    let found = FUNCTIONS.into_iter().find(|func| func.name().eq_ignore_ascii_case(name));
    found.ok_or_else(|| format!("\"{name}\" is no function"))
}

/// The bits of the names of a list. An empty list allows all.
fn list(words: &str, names: &[(&str, u8)]) -> Result<u8, String> {
    let words = words.trim();
    let (negated, words) = words.strip_prefix('^').map_or((false, words), |rest| (true, rest));
    let all = names.iter().fold(0, |all, (_, bits)| all | bits);
    let (mut named, mut empty) = (0, true);
    for word in words.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let found = names.iter().find(|(name, _)| name.eq_ignore_ascii_case(word));
        named |= found.ok_or_else(|| format!("\"{word}\" is not known"))?.1;
        empty = false;
    }
    Ok(match (empty, negated) {
        (true, _) => all,
        (false, true) => all & !named,
        (false, false) => named,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIMPLE: u8 = 1 << Proto::Simple as u8;
    const LL: u8 = 1 << Proto::Ll as u8;
    const LL128: u8 = 1 << Proto::Ll128 as u8;

    #[test]
    fn protocols_are_parsed() {
        let all_reduce = |words| protocols(words, Func::AllReduce);
        for words in ["Simple", "^LL,LL128", "LL;allreduce:simple", "^ll, ll128 ;"] {
            assert_eq!(all_reduce(words.trim_end_matches(';')), Ok(SIMPLE), "{words}");
        }
        for words in ["LL", " ll ", "^Simple,LL128", "Simple;AllReduce:LL", "allreduce:^simple,ll128"] {
            assert_eq!(all_reduce(words), Ok(LL), "{words}");
        }
        for words in ["", "simple,LL,LL128", "broadcast:LL", "allreduce:"] {
            assert_eq!(all_reduce(words), Ok(SIMPLE | LL | LL128), "{words}");
        }
        assert_eq!(all_reduce("LL,Simple"), Ok(SIMPLE | LL));
        assert_eq!(all_reduce("^LL128"), Ok(SIMPLE | LL));
        for words in ["LL128", "^LL,Simple", "Simple;allreduce:ll128"] {
            assert_eq!(all_reduce(words), Ok(LL128), "{words}");
        }
        assert_eq!(all_reduce("^LL,Simple,LL128"), Ok(0));
        assert_eq!(protocols("Simple;allreduce:LL", Func::Broadcast), Ok(SIMPLE));
        for words in ["fast", "LL,fast", "LL;Simple", "LL;gather:LL", "allreduce:LL,^Simple", "LL:allreduce"] {
            assert!(all_reduce(words).is_err(), "{words}");
        }
    }

    #[test]
    fn algorithms_are_parsed() {
        let of = |words, func| algorithms(words, func);
        let (ring, tree) = (1 << Algo::Ring as u8, 1 << Algo::Tree as u8);
        assert_eq!(of("Ring", Func::AllReduce), Ok(ring));
        assert_eq!(of("Tree,Ring", Func::Broadcast), Ok(ring | tree));
        assert_eq!(of("nvls", Func::AllReduce), Ok(0));
        assert_eq!(of("ring;allreduce:tree", Func::AllReduce), Ok(tree));
        assert_eq!(of("ring;allreduce:tree", Func::Reduce), Ok(ring));
        assert_eq!(of("^ring,tree,direct,direct2", Func::Reduce), Ok(1 << Algo::Pat as u8));
        let text = of("rings", Func::Reduce).unwrap_err();
        assert!(text.contains("\"rings\"") && text.contains("collnetdirect"), "{text}");
    }

    proptest! {
        #[test]
        fn nothing_panics(words in "[ALSilmp128aredu:;,^ ]{0,24}") {
            let _ = (protocols(&words, Func::AllReduce), algorithms(&words, Func::AllReduce));
        }
    }
}
