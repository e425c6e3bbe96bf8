//! The values of variables. Pure.

use super::source::ValueSource;
use super::table::{Param, ValueKind};

/// What was made of the text of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// The text as it was set.
    pub text: String,
    /// Its number, for variables that are numbers.
    pub number: Option<i64>,
}

/// Reads the text of a variable. None: empty, or not a value of this variable, so that the default holds.
pub(super) fn read(param: &Param, text: &str) -> Option<Reading> {
    if text.is_empty() {
        return None;
    }
    let number = match param.kind {
        ValueKind::Text => None,
        ValueKind::Flag => Some(boolean(text)?),
        ValueKind::Choice { low, high } => Some(integer(text).filter(|n| (low..=high).contains(n))?),
        ValueKind::Int { low, high } => Some(clamp(param, integer(text)?, low, high)),
    };
    Some(Reading { text: text.to_string(), number })
}

/// A number outside the range becomes the nearest one inside; the default is always allowed.
fn clamp(param: &Param, number: i64, low: i64, high: i64) -> i64 {
    if number == param.default_int() { number } else { number.clamp(low, high) }
}

/// 0 and 1, the words that NCCL's newer parameters know, and any other number as NCCL's older ones read it.
fn boolean(text: &str) -> Option<i64> {
    let word = text.trim();
    let is = |words: [&str; 2]| words.iter().any(|w| w.eq_ignore_ascii_case(word));
    match () {
        () if is(["t", "true"]) => Some(1),
        () if is(["f", "false"]) => Some(0),
        () => integer(text),
    }
}

/// C's `strtoll` with base 0: blanks, a sign, then decimal, 0x hexadecimal or 0 octal digits; what
/// follows is ignored. None where there is no digit or the number does not fit.
pub fn integer(text: &str) -> Option<i64> {
    let text = text.trim_start_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let hex = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let (radix, digits) = match hex.filter(|h| h.starts_with(|c: char| c.is_ascii_hexdigit())) {
        Some(hex) => (16, hex),
        None if digits.starts_with('0') => (8, digits),
        None => (10, digits),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let magnitude = i128::from_str_radix(digits.get(..end).filter(|d| !d.is_empty())?, radix).ok()?;
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

/// NCCL_CTA_POLICY: words joined by a vertical bar, or the old numbers 0 to 2.
pub fn cta_policy(text: &str) -> Option<i64> {
    let one = |word: &str| match word.trim().to_ascii_uppercase().as_str() {
        "DEFAULT" | "0" => Some(0),
        "EFFICIENCY" | "1" => Some(1),
        "ZERO" | "2" => Some(2),
        _ => None,
    };
    text.split('|').try_fold(0, |mask, word| Some(mask | one(word)?))
}

/// Whether a comma-separated list (NCCL_NO_CACHE) names `name`, or says ALL.
pub(super) fn lists_name(list: &str, name: &str) -> bool {
    list.split(',').map(str::trim).any(|item| item == name || item.eq_ignore_ascii_case("ALL"))
}

/// What the log says about a variable that is set; None for an empty one.
pub(super) fn note(param: &Param, text: &str, reading: Option<&Reading>, source: &ValueSource) -> Option<String> {
    if text.is_empty() {
        return None;
    }
    let name = param.name;
    let Some(reading) = reading else {
        let default = param.default_text();
        return Some(format!("Invalid value {text} for {name} (set by {source}), using default {default}."));
    };
    let unused = if param.used { "" } else { " It has no effect in this version of oxccl." };
    Some(match reading.number {
        None => format!("{name} set by {source} to {text}{}", unused.replacen(' ', ". ", 1)),
        Some(n) if integer(text).is_none_or(|asked| asked == n) => {
            format!("{name} set by {source} to {n}.{unused}")
        }
        Some(n) => format!("{name} set by {source} to {n}: {text} is out of range.{unused}"),
    })
}
