//! What users' filters leave: the algorithms and protocols that are candidates for each function.

use super::filter;
use crate::error::Error;
use crate::plan::algorithm::Algo;
use crate::plan::call::Func;
use crate::plan::layout::Proto;

pub use super::filter::FUNCTIONS;

const SIMPLE: u8 = 1 << Proto::Simple as u8;
const LL: u8 = 1 << Proto::Ll as u8;
const LL128: u8 = 1 << Proto::Ll128 as u8;
/// The least compute capability for LL128, major × 10 + minor.
const LL128_CAPABILITY: i32 = 70;

/// Algorithms and protocols that one call could be carried out by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Candidates {
    /// Allowed algorithms: bit `1 << algorithm`.
    pub algorithms: u8,
    /// Allowed protocols: bit `1 << protocol`.
    pub protocols: u8,
}

impl Candidates {
    /// Everything.
    pub const ALL: Candidates = Candidates { algorithms: !0, protocols: !0 };

    /// Whether an algorithm with a protocol is allowed.
    pub fn allows(self, algorithm: Algo, protocol: Proto) -> bool {
        self.algorithms & 1 << algorithm as u8 != 0 && self.protocols & 1 << protocol as u8 != 0
    }
}

/// Why Simple is used in place of what `NCCL_PROTO` leaves, for a warning: what it leaves. None where it is not.
pub type SimpleInstead = Option<&'static str>;

/// The candidates of each function that filters can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filters([Candidates; FUNCTIONS.len()]);

impl Filters {
    /// Everything.
    pub const ALL: Filters = Filters([Candidates::ALL; FUNCTIONS.len()]);

    /// What the words of `NCCL_ALGO` and `NCCL_PROTO` leave. No protocol means that the words leave none that is
    /// built.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] names the variable and the word that is not understood.
    pub fn parse(algorithms: &str, protocols: &str) -> Result<Filters, Error> {
        let refuse =
            |variable: &str, words: &str, why: String| Error::InvalidUsage(format!("{variable}={words}: {why}"));
        let mut filters = Filters::ALL;
        for (candidates, func) in filters.0.iter_mut().zip(FUNCTIONS) {
            candidates.algorithms =
                filter::algorithms(algorithms, func).map_err(|why| refuse("NCCL_ALGO", algorithms, why))?;
            candidates.protocols =
                filter::protocols(protocols, func).map_err(|why| refuse("NCCL_PROTO", protocols, why))?;
        }
        Ok(filters)
    }

    /// What a device can do of it. The software device has no LL128: a host's stores to a line of 128 bytes are
    /// several; and so are those of GPUs before compute capability 7.0. Where nobody has `asked` for protocols, LL is
    /// not used on the software device, where it gains nothing.
    pub fn usable(mut self, asked: bool, capability: i32, software: bool) -> (Filters, SimpleInstead) {
        let mut why = None;
        for candidates in &mut self.0 {
            match (asked, software) {
                (false, true) => candidates.protocols = SIMPLE,
                (false, false) => candidates.protocols = SIMPLE | LL | LL128,
                (true, true) if candidates.protocols == LL128 => {
                    candidates.take_simple("only LL128, which the software device does not have", &mut why);
                }
                (true, false) if candidates.protocols == LL128 && capability < LL128_CAPABILITY => {
                    let text = "only LL128, which needs a GPU of compute capability 7.0 or later";
                    candidates.take_simple(text, &mut why);
                }
                (true, _) if candidates.protocols == 0 => candidates.take_simple("no protocol", &mut why),
                _ => {}
            }
            if software || capability < LL128_CAPABILITY {
                candidates.protocols &= !LL128;
            }
        }
        (self, why)
    }

    /// What is a candidate here and for another rank, which has told its own as [`Filters::as_bits`]. Simple is where
    /// nothing else is.
    pub(super) fn and(&mut self, other: &[(u8, u8)]) {
        for (place, common) in self.0.iter_mut().enumerate() {
            let (algorithms, protocols) = other.get(place).copied().unwrap_or((0, 0));
            common.algorithms &= algorithms;
            common.protocols &= protocols;
        }
    }

    /// Simple, for functions that no protocol is left to.
    pub(super) fn or_simple(&mut self) {
        self.0.iter_mut().filter(|left| left.protocols == 0).for_each(|left| left.protocols = SIMPLE);
    }

    /// Takes a protocol away, since the links are not what it needs; `only` says that nothing else was left.
    pub(super) fn without(&mut self, protocol: Proto, only: &'static str) -> SimpleInstead {
        let (protocol, mut why) = (1 << protocol as u8, None);
        for candidates in &mut self.0 {
            if candidates.protocols == protocol {
                candidates.take_simple(only, &mut why);
            }
            candidates.protocols &= !protocol;
        }
        why
    }

    /// By place in [`FUNCTIONS`], algorithms and protocols as bits.
    pub fn as_bits(&self) -> Vec<(u8, u8)> {
        self.0.iter().map(|candidates| (candidates.algorithms, candidates.protocols)).collect()
    }

    /// The candidates of a function. Functions without a choice of algorithms use Simple, but for where only other
    /// protocols are left to all others.
    pub fn of(&self, func: Func) -> Candidates {
        let place = FUNCTIONS.iter().position(|known| *known == func);
        let protocols = self.protocols();
        let protocols = if protocols & SIMPLE != 0 { SIMPLE } else { protocols };
        place.map_or(Candidates { protocols, ..Candidates::ALL }, |place| self.0[place])
    }

    /// The protocols that any function may use: bits `1 << protocol`.
    pub fn protocols(&self) -> u8 {
        self.0.iter().fold(0, |all, candidates| all | candidates.protocols)
    }
}

impl Candidates {
    /// Simple, in place of what is left.
    fn take_simple(&mut self, left: &'static str, why: &mut SimpleInstead) {
        why.get_or_insert(left);
        self.protocols = SIMPLE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_uses_what_it_can() {
        let usable = |words: &str, capability, software| {
            let filters = Filters::parse("", words).expect("protocols");
            let (filters, why) = filters.usable(!words.is_empty(), capability, software);
            (filters.protocols(), why.is_some())
        };
        assert_eq!(usable("", 90, true), (SIMPLE, false));
        assert_eq!(usable("", 90, false), (SIMPLE | LL | LL128, false));
        assert_eq!(usable("", 60, false), (SIMPLE | LL, false));
        assert_eq!(usable("LL,LL128", 90, true), (LL, false));
        assert_eq!(usable("LL128", 90, true), (SIMPLE, true));
        assert_eq!(usable("LL128", 60, false), (SIMPLE, true));
        assert_eq!(usable("LL128", 70, false), (LL128, false));
        assert_eq!(usable("^LL,LL128,Simple", 90, false), (SIMPLE, true));
    }

    #[test]
    fn words_that_are_not_understood_are_named_with_their_variable() {
        let text = |algorithms, protocols| Filters::parse(algorithms, protocols).expect_err("a word").to_string();
        assert!(text("rings", "").contains("NCCL_ALGO=rings: \"rings\""), "{}", text("rings", ""));
        assert!(text("", "fast").contains("NCCL_PROTO=fast: \"fast\""), "{}", text("", "fast"));
    }

    #[test]
    fn functions_without_a_choice_use_simple_if_there_is_any() {
        let of = |words, func| Filters::parse("", words).expect("protocols").of(func).protocols;
        assert_eq!(of("Simple,LL", Func::AlltoAll), SIMPLE);
        assert_eq!(of("LL", Func::Gather), LL);
    }
}
