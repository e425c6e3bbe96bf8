//! Configuration files: `NCCL_CONF_FILE` or `~/.nccl.conf`, then `/etc/nccl.conf`.
//!
//! The syntax is NCCL's, to the letter: `NAME=value`, one a line, no quoting, no trimming, `#` in the
//! first column is a comment, a line without `=` is nothing. What it makes useless (a blank before the
//! `=`) is told in the log instead of being guessed at. A byte order mark is skipped.

use super::source::{Environment, ValueSource};
use std::collections::HashMap;
use std::path::Path;

/// Longest file that is read, in bytes.
const LONGEST_FILE: u64 = 1 << 20;
/// Longest line, in bytes.
const LONGEST_LINE: usize = 4095;
/// Longest name and longest value, in bytes.
const LONGEST_WORD: usize = 1023;

/// One assignment of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConfSetting {
    pub name: String,
    pub value: String,
    /// From 1.
    pub line: usize,
}

/// Puts the settings of the files into the environment where the name is not set. Which variable came
/// from where, and what the log is to say.
pub(super) fn apply(environment: &mut dyn Environment) -> (HashMap<String, ValueSource>, Vec<String>) {
    let mut origins = HashMap::new();
    let mut notes = Vec::new();
    let named = environment.get("NCCL_CONF_FILE").filter(|p| !p.is_empty());
    let home = || environment.get("HOME").filter(|h| !h.is_empty()).map(|h| format!("{h}/.nccl.conf"));
    let must_exist = named.is_some();
    if let Some(path) = named.or_else(home) {
        apply_file(environment, &path, must_exist, &mut origins, &mut notes);
    }
    apply_file(environment, "/etc/nccl.conf", false, &mut origins, &mut notes);
    (origins, notes)
}

fn apply_file(
    environment: &mut dyn Environment,
    path: &str,
    must_exist: bool,
    origins: &mut HashMap<String, ValueSource>,
    notes: &mut Vec<String>,
) {
    let bytes = match environment.read(Path::new(path), LONGEST_FILE) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && !must_exist => return,
        Err(e) => return notes.push(format!("configuration file {path} is not used: {e}")),
    };
    let (settings, problems) = parse(&bytes);
    notes.push(format!("read {} settings from {path}", settings.len()));
    notes.extend(problems.into_iter().map(|(line, text)| format!("{path}:{line}: {text}")));
    for ConfSetting { name, value, line } in settings {
        match (environment.get(&name), origins.get(&name)) {
            (None, _) => {
                environment.set(&name, &value);
                origins.insert(name, ValueSource::File { path: path.to_string(), line });
            }
            (Some(_), first) => {
                let winner = first.unwrap_or(&ValueSource::Environment);
                notes.push(format!("{path}:{line}: {name} is ignored, it is already set by {winner}"));
            }
        }
    }
}

/// The assignments of a file in their order, and what is wrong with other lines.
pub(super) fn parse(bytes: &[u8]) -> (Vec<ConfSetting>, Vec<(usize, String)>) {
    let text = String::from_utf8_lossy(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes));
    let mut settings = Vec::new();
    let mut problems = Vec::new();
    for (index, line) in text.split('\n').enumerate() {
        let line = line.strip_suffix('\r').unwrap_or(line);
        match assignment(line) {
            Ok(None) => {}
            Ok(Some((name, value))) => {
                settings.push(ConfSetting { name: name.to_string(), value: value.to_string(), line: index + 1 });
            }
            Err(problem) => problems.push((index + 1, problem)),
        }
    }
    (settings, problems)
}

/// The name and value of a line; None for comments and lines without `=`.
fn assignment(line: &str) -> Result<Option<(&str, &str)>, String> {
    if line.starts_with('#') {
        return Ok(None);
    }
    if line.len() > LONGEST_LINE {
        return Err(format!("a line of {} bytes is ignored, at most {LONGEST_LINE} are read", line.len()));
    }
    let Some((name, value)) = line.split_once('=') else {
        return Ok(None);
    };
    if name.is_empty() || name.contains('\0') || value.contains('\0') {
        return Err("a line without a usable name or value is ignored".to_string());
    }
    if name.trim() != name {
        return Err(format!("\"{name}\" sets nothing: blanks beside a name belong to it"));
    }
    match name.len().max(value.len()) {
        longest if longest > LONGEST_WORD => Err(format!("{:.40}… is ignored: longer than {LONGEST_WORD} bytes", name)),
        _ => Ok(Some((name, value))),
    }
}
