//! The words of `NCCL_PROTO` (spec §8.2, grammar of `NCCL_ALGO` alike): which protocols a function may use. Pure.
//!
//! Sections joined by `;`, each `[function:]list`. A list is names joined by `,`, with `^` in front for all but
//! these. Only the first section may name no function: it is for all that have no section of their own.

use crate::plan::call::Func;
use crate::plan::layout::Proto;

/// The protocols, as one is taken where several are left and Simple is not.
const NAMES: [(&str, Proto); 3] = [("LL", Proto::Ll), ("LL128", Proto::Ll128), ("Simple", Proto::Simple)];
/// The functions that a section can name.
const FUNCTIONS: [Func; 5] = [Func::Broadcast, Func::Reduce, Func::AllGather, Func::ReduceScatter, Func::AllReduce];

/// The protocol for a function: Simple where it is allowed, as measured best where nobody asks, else LL, else LL128,
/// which not every device has. `Ok(None)`: the words leave nothing.
///
/// # Errors
/// A text that names the word which is not understood.
pub fn protocol(words: &str, func: Func) -> Result<Option<Proto>, String> {
    let mut allowed = [true; NAMES.len()];
    for (place, section) in words.split(';').enumerate() {
        let (function, list) = match section.split_once(':') {
            Some((name, list)) => (Some(function(name)?), list),
            None if place == 0 => (None, section),
            None => return Err(format!("\"{}\" names no function, which only the first section may do", section.trim())),
        };
        let chosen = mask(list)?;
        if function.is_none_or(|named| named == func) {
            allowed = chosen;
        }
    }
    let left = || NAMES.iter().zip(allowed).filter(|(_, allowed)| *allowed).map(|((_, proto), _)| *proto);
    Ok(left().find(|proto| *proto == Proto::Simple).or_else(|| left().next()))
}

fn function(name: &str) -> Result<Func, String> {
    let name = name.trim();
    let found = FUNCTIONS.into_iter().find(|func| func.name().eq_ignore_ascii_case(name));
    found.ok_or_else(|| format!("\"{name}\" is no function"))
}

/// The names of a list, each allowed or not. An empty list allows all.
fn mask(list: &str) -> Result<[bool; NAMES.len()], String> {
    let list = list.trim();
    let (negated, list) = list.strip_prefix('^').map_or((false, list), |rest| (true, rest));
    let mut named = [false; NAMES.len()];
    for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let place = NAMES.iter().position(|(name, _)| name.eq_ignore_ascii_case(word));
        named[place.ok_or_else(|| format!("\"{word}\" is no protocol"))?] = true;
    }
    let empty = !named.contains(&true);
    Ok(named.map(|yes| empty || yes != negated))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_of_the_specification() {
        let all_reduce = |words| protocol(words, Func::AllReduce);
        let (simple, ll) = (Ok(Some(Proto::Simple)), Ok(Some(Proto::Ll)));
        for words in
            ["", "Simple", "simple,LL", "LL,Simple", "^LL", "^LL128", "LL;allreduce:simple", "broadcast:LL", "allreduce:"]
        {
            assert_eq!(all_reduce(words), simple, "{words}");
        }
        for words in ["LL", " ll ", "^simple", "^Simple,LL128", "Simple;AllReduce:LL", "allreduce:^simple", "LL128,LL"] {
            assert_eq!(all_reduce(words), ll, "{words}");
        }
        for words in ["LL128", "^LL,Simple", "Simple;allreduce:ll128"] {
            assert_eq!(all_reduce(words), Ok(Some(Proto::Ll128)), "{words}");
        }
        assert_eq!(all_reduce("^LL,Simple,LL128"), Ok(None));
        assert_eq!(protocol("Simple;allreduce:LL", Func::Broadcast), simple);
        for words in ["fast", "LL,fast", "LL;Simple", "LL;gather:LL", "allreduce:LL,^Simple", "LL:allreduce"] {
            assert!(all_reduce(words).is_err(), "{words}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(words in "[ALSilmp128aredu:;,^ ]{0,24}") {
            let _ = protocol(&words, Func::AllReduce);
        }
    }
}
