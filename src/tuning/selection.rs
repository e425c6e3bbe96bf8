//! The words of `ncclCollConfig_t::algSelection`. Pure.
//!
//! A selection is a list of terms joined by `,` (any of them), a term a list of factors joined by `+` (all of
//! them), a factor a name, with `^` in front for all but it. A name stands for every known one that starts
//! with it; blanks and case do not matter.

use crate::plan::algorithm::Algo;
use crate::plan::call::Func;

/// Every known name with its bit; the bits are NCCL's.
const NAMES: [(&str, u32); 28] = [
    ("TREE_LL", 0),
    ("TREE_LL128", 1),
    ("TREE_SIMPLE", 2),
    ("RING_LL", 3),
    ("RING_LL128", 4),
    ("RING_SIMPLE", 5),
    ("COLLNET_DIRECT_SIMPLE", 8),
    ("COLLNET_CHAIN_SIMPLE", 11),
    ("NVLS_SIMPLE", 14),
    ("NVLSTREE_SIMPLE", 17),
    ("PAT_SIMPLE", 20),
    ("SYMK_AGXLL_R", 21),
    ("SYMK_AGXLLMC_R", 22),
    ("SYMK_RSXTMALD_AGXTMAST", 23),
    ("SYMK_RSXLD_AGXST", 24),
    ("SYMK_RSXLDMC_AGXSTMC", 25),
    ("SYMK_LLMC", 27),
    ("SYMK_TMAST", 28),
    ("SYMK_ST", 29),
    ("SYMK_TMASTMC", 30),
    ("SYMK_STMC", 31),
    ("SYMK_RAILRING_LSASTMC", 32),
    ("SYMK_TMALD", 34),
    ("SYMK_LD", 35),
    ("SYMK_LDMC", 36),
    ("SYMK_RAILA2A_LSALD", 37),
    ("SYMK_RAILA2A_LSALDMC", 38),
    ("SYMK_LL", SYMK_LL),
];

/// SYMK_LL has a bit for AllGather and one for ReduceScatter.
const SYMK_LL: u32 = 26;
const SYMK_LL_MASK: u64 = 1 << 26 | 1 << 33;
/// All known names together.
const KNOWN: u64 = 0x7f_fff2_493f;

/// The bits that exist for an operation.
pub fn valid(func: Func) -> u64 {
    match func {
        Func::Broadcast | Func::Reduce => 0x38,
        Func::AllGather => 0x1_fc10_4138,
        Func::ReduceScatter => 0x7e_0010_4138,
        Func::AllReduce => 0x3e2_493f,
        _ => 0,
    }
}

/// The algorithms that `words` select for `func`; None where the words are empty.
pub fn parse(words: &str, func: Func) -> Result<Option<u64>, String> {
    let words: String = words.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_ascii_uppercase()).collect();
    let terms = words.split(',').filter(|term| !term.is_empty());
    let mut mask = 0;
    let mut empty = true;
    for one in terms {
        mask |= term(one)?;
        empty = false;
    }
    match mask & valid(func) {
        _ if empty => Ok(None),
        0 => Err("none of its algorithms exists for this operation".to_string()),
        chosen => Ok(Some(chosen)),
    }
}

/// The algorithms of ours that a mask selects, as bits `1 << algo`; None where it selects only what is not built: a
/// selection is a hint.
pub fn algorithms(mask: u64) -> Option<u8> {
    let families = [(0x07, Algo::Tree), (0x38, Algo::Ring), (1 << 20, Algo::Pat)];
    let chosen = families.iter().filter(|(bits, _)| mask & bits != 0).fold(0, |all, (_, algo)| all | 1 << *algo as u8);
    (chosen != 0).then_some(chosen)
}

fn term(words: &str) -> Result<u64, String> {
    let mask = words.split('+').try_fold(KNOWN, |mask, one| Ok::<u64, String>(mask & factor(one)?))?;
    if mask == 0 { Err(format!("\"{words}\" selects nothing")) } else { Ok(mask) }
}

fn factor(word: &str) -> Result<u64, String> {
    let (inverted, name) = word.strip_prefix('^').map_or((false, word), |rest| (true, rest));
    if name.is_empty() {
        return Err("a name is missing".to_string());
    }
    let bit = |(_, b): &(&str, u32)| if *b == SYMK_LL { SYMK_LL_MASK } else { 1 << b };
    let mask = NAMES.iter().filter(|(known, _)| known.starts_with(name)).fold(0, |m, n| m | bit(n));
    match (mask, inverted) {
        (0, _) => Err(format!("\"{name}\" is not known")),
        (mask, true) => Ok(KNOWN & !mask),
        (mask, false) => Ok(mask),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The masks of NCCL's own selections.
    #[test]
    fn selections_of_nccls_own_run() {
        assert_eq!(parse("RING", Func::AllReduce), Ok(Some(0x38)));
        assert_eq!(parse("ring_ll", Func::AllReduce), Ok(Some(0x18)));
        assert_eq!(parse("RING_SIMPLE", Func::Broadcast), Ok(Some(0x20)));
        assert_eq!(parse("NVLS", Func::AllReduce), Ok(Some(1 << 14 | 1 << 17)));
        assert_eq!(parse(" Ring,, tree ", Func::AllReduce), Ok(Some(0x3f)));
        assert_eq!(parse("^RING", Func::AllReduce), Ok(Some(0x3e2_493f & !0x38)));
        assert_eq!(parse("RING+^RING_LL", Func::Reduce), Ok(Some(0x20)));
        assert_eq!(parse("SYMK_LL", Func::AllGather), Ok(Some(1 << 26 | 1 << 27)));
        assert_eq!(parse("", Func::AllReduce), Ok(None));
        assert_eq!(parse(",", Func::AllReduce), Ok(None));
        for (words, func) in [
            ("PAT", Func::AllReduce),
            ("RING", Func::AlltoAll),
            ("TREE", Func::Broadcast),
            ("RING+TREE", Func::AllReduce),
            ("^", Func::AllReduce),
            ("+", Func::AllReduce),
            ("LL", Func::AllReduce),
            ("SIMPLE", Func::AllReduce),
            ("RINGS", Func::AllReduce),
        ] {
            assert!(parse(words, func).is_err(), "{words}");
        }
    }

    #[test]
    fn the_names_cover_every_known_bit() {
        let all = NAMES.iter().fold(0, |mask, (_, bit)| mask | 1u64 << bit) | SYMK_LL_MASK;
        assert_eq!(all, KNOWN);
        for func in [Func::Broadcast, Func::Reduce, Func::AllGather, Func::ReduceScatter, Func::AllReduce] {
            assert_eq!(valid(func) & !KNOWN, 0);
        }
    }

    proptest! {
        #[test]
        fn a_mask_is_never_empty_or_foreign(words in "[RINGTELSMK_^+, ]{0,24}") {
            if let Ok(Some(mask)) = parse(&words, Func::AllReduce) {
                prop_assert!(mask != 0 && mask & !valid(Func::AllReduce) == 0);
            }
        }
    }
}
