//! Timestamps: strftime with fractions of a second.

use chrono::format::StrftimeItems;
use chrono::{DateTime, Local, Timelike};
use std::fmt::Write;

/// Longest timestamp, in bytes; a longer one is left out.
const LONGEST: usize = 255;

/// What strftime of C knows; chrono knows more.
const CONVERSIONS: &[u8] = b"aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%";

/// The local time in `format`.
pub(super) fn now(format: &str) -> String {
    show(format, &Local::now())
}

/// `time` in `format`: `%1f` to `%9f` is the fraction of the second in that many digits (once), an
/// underscore is shown as a space, what strftime does not know stays as it is.
pub(super) fn show(format: &str, time: &DateTime<Local>) -> String {
    let format = with_fraction(format, time.nanosecond() % 1_000_000_000);
    let mut text = String::new();
    match write!(text, "{}", time.format_with_items(StrftimeItems::new_lenient(&format))) {
        Ok(()) if text.len() <= LONGEST => text.replace('_', " "),
        _ => String::new(),
    }
}

/// Puts the fraction in the place of the first `%Nf`; later ones are kept as text.
fn with_fraction(format: &str, nanoseconds: u32) -> String {
    let digits = format!("{nanoseconds:09}");
    let mut out = String::new();
    let mut rest = format;
    let mut done = false;
    while let Some(at) = rest.find('%') {
        let (head, tail) = rest.split_at(at);
        out.push_str(head);
        let bytes = tail.as_bytes();
        match bytes.get(1) {
            Some(n @ b'1'..=b'9') if bytes.get(2) == Some(&b'f') => {
                let width = usize::from(n - b'0');
                out.push_str(if done { "%%" } else { &digits[..width] });
                rest = &tail[if done { 1 } else { 3 }..];
                done = true;
            }
            Some(b'-' | b'0') if bytes.get(2).is_some_and(|c| CONVERSIONS.contains(c)) => {
                out.push_str(&tail[..3]);
                rest = &tail[3..];
            }
            Some(c) if CONVERSIONS.contains(c) => {
                out.push_str(&tail[..2]);
                rest = &tail[2..];
            }
            _ => {
                out.push_str("%%");
                rest = &tail[1..];
            }
        }
    }
    out + rest
}
