//! Rules about lines of text, of any language: how wide they are, and what they do not cite.

use crate::rules::Finding;
use crate::tree::File;

/// Most characters of a line.
pub const MAX_WIDTH: usize = 120;

/// How a language writes strings and comments.
struct Syntax {
    /// What begins a comment that ends with its line.
    comment: &'static str,
    /// Characters that begin and end a string.
    quotes: &'static [char],
}

impl Syntax {
    fn of(file: &File) -> Syntax {
        if file.is_rust() || file.is_cpp() {
            Syntax { comment: "//", quotes: &['"'] }
        } else {
            Syntax { comment: "#", quotes: &['"', '\''] }
        }
    }
}

/// Lines with too many characters. Longer ones may be rows of a Markdown table, lines whose last word is an address on
/// the web, and those whose last allowed column lies inside a string that begins on that line: to break such a line is
/// to change the string.
pub fn long_lines(file: &File) -> Vec<Finding> {
    let markdown = file.path.ends_with(".md");
    let syntax = Syntax::of(file);
    let mut findings = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        let width = line.chars().count();
        if width <= MAX_WIDTH || (markdown && line.trim_start().starts_with('|')) || ends_with_address(line) {
            continue;
        }
        if markdown || !inside_string(line, &syntax) {
            let text = format!("{width} characters (at most {MAX_WIDTH})");
            findings.push(Finding::new(&file.path, number + 1, "long line", text));
        }
    }
    findings
}

/// Whether the rest of a line is an address from somewhere within the width on.
fn ends_with_address(line: &str) -> bool {
    let last = line.trim_end().rsplit(' ').next().unwrap_or("");
    let before = line.chars().count() - last.chars().count();
    last.contains("://") && before <= MAX_WIDTH
}

/// Whether a string that begins on this line has not ended in the last allowed column.
fn inside_string(line: &str, syntax: &Syntax) -> bool {
    let chars: Vec<char> = line.chars().collect();
    let comment: Vec<char> = syntax.comment.chars().collect();
    let mut open: Option<char> = None;
    let mut at = 0;
    while at < MAX_WIDTH {
        let c = chars[at];
        match open {
            Some(_) if c == '\\' => at += 1,
            Some(quote) => open = if c == quote { None } else { open },
            None if chars[at..].starts_with(&comment) => return false,
            None if syntax.quotes.contains(&c) => open = Some(c),
            // A character such as '"' begins no string.
            None if c == '\'' => at += character(&chars[at..]),
            None => {}
        }
        at += 1;
    }
    open.is_some()
}

/// How many characters follow the quote at the beginning of a character literal; none where it is a lifetime.
fn character(chars: &[char]) -> usize {
    match chars {
        ['\'', '\\', _, '\'', ..] => 3,
        ['\'', _, '\'', ..] => 2,
        _ => 0,
    }
}

/// Words that name documents outside of the repository, wherever they stand.
const DOCUMENTS: [&str; 6] = ["\u{a7}", "nccl-abi", "internals.md", "user-cases", "User case", "DESIGN"];
/// Words that name one where a number or a letter with a number follows: "section 9.4" of it, "A.1".
const NUMBERED: [&str; 3] = ["spec", "delta", "internals"];

/// Citations of documents outside of the repository, which a reader does not have: what matters of them must be said.
pub fn citations(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        let cited = DOCUMENTS.iter().find(|name| line.contains(**name)).or_else(|| numbered(line));
        if let Some(name) = cited {
            let text = format!("`{name}` is a document that readers do not have: {}", line.trim());
            findings.push(Finding::new(&file.path, number + 1, "citation", text));
        }
    }
    findings
}

/// The name that is cited with a number, or called "the spec".
fn numbered(line: &str) -> Option<&'static &'static str> {
    let lower = line.to_ascii_lowercase();
    let words: Vec<&str> = lower.split_whitespace().collect();
    NUMBERED.iter().find(|name| {
        words.windows(2).any(|pair| {
            let [first, second] = [pair[0], pair[1]].map(|word| word.trim_start_matches('('));
            first == **name && is_section(second) || first == "the" && second.trim_end_matches("'s") == "spec"
        })
    })
}

/// `9`, `9.4`, `a.1`, with what ends a sentence behind it.
fn is_section(word: &str) -> bool {
    let word = word.trim_end_matches([')', ',', '.', ';', ':']);
    let rest = word.strip_prefix(|c: char| c.is_ascii_alphabetic()).and_then(|rest| rest.strip_prefix('.'));
    let number = rest.unwrap_or(word);
    number.starts_with(|c: char| c.is_ascii_digit()) && number.chars().all(|c| c.is_ascii_digit() || c == '.')
}
