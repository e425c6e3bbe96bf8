//! Finds the functions of C, C++ and CUDA files by counting braces.

use crate::rules::Function;
use crate::tree::File;

/// What an open brace belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Brace {
    /// A namespace, a type, `extern "C"`: functions can stand inside.
    Scope,
    /// A function's body, with its first line and its name.
    Function(usize, String),
    /// Anything else.
    Other,
}

/// The functions of a file, by the lines from the function's name to its last brace. Preprocessor
/// definitions that go on over several lines count as functions.
pub fn functions(file: &File) -> Vec<Function> {
    let text = blank_out(&file.text);
    let mut found = long_macros(file);
    let mut open: Vec<Brace> = Vec::new();
    let mut head = String::new(); // what stands before the next brace
    let mut head_line = 1;
    let mut line = 1;
    for c in text.chars() {
        match c {
            '{' => {
                open.push(classify(&head, head_line, &open));
                head.clear();
            }
            '}' => {
                if let Some(Brace::Function(first, name)) = open.pop() {
                    let lines = line - first + 1;
                    found.push(Function { file: file.path.clone(), line: first, name, lines, test: false });
                }
                head.clear();
            }
            ';' => head.clear(),
            '\n' => {
                line += 1;
                head.push(' ');
            }
            c => {
                if head.trim().is_empty() && !c.is_whitespace() {
                    head_line = line;
                }
                head.push(c);
            }
        }
    }
    found
}

fn classify(head: &str, line: usize, open: &[Brace]) -> Brace {
    let head = head.trim();
    let at_scope = open.iter().all(|brace| *brace == Brace::Scope);
    let first = head.split_whitespace().find(|word| !["static", "inline", "typedef", "const"].contains(word));
    let ends_like_a_function = head.ends_with(')')
        || ["const", "noexcept", "override"].iter().any(|word| head.ends_with(&format!(") {word}")))
        || head.rsplit_once("->").is_some_and(|(before, _)| before.trim_end().ends_with(')'));
    match first {
        _ if !at_scope => Brace::Other,
        Some("namespace" | "extern") if !ends_like_a_function => Brace::Scope,
        _ if ends_like_a_function && !head.contains(" = ") => Brace::Function(line, name_of(head)),
        _ if ["struct", "class", "union"].iter().any(|word| head.split_whitespace().any(|w| w == *word)) => {
            Brace::Scope
        }
        _ => Brace::Other,
    }
}

/// The word before the parameters.
fn name_of(head: &str) -> String {
    let before = head.split('(').next().unwrap_or(head);
    let word = |c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '~';
    before.trim_end().rsplit(|c| !word(c)).next().unwrap_or("").to_string()
}

/// Comments, strings, characters and preprocessor lines become spaces; lines stay where they are.
fn blank_out(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut line_start = true;
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('#', _) if line_start => skip_directive(&mut chars, &mut out),
            ('/', Some('/')) => skip_until(&mut chars, &mut out, |_, c| c == '\n'),
            ('/', Some('*')) => {
                chars.next();
                skip_until(&mut chars, &mut out, |before, c| before == '*' && c == '/');
            }
            ('"', _) => skip_literal(&mut chars, &mut out, '"'),
            // A digit before it makes it a digit separator.
            ('\'', _) if !out.ends_with(|c: char| c.is_ascii_hexdigit()) => skip_literal(&mut chars, &mut out, '\''),
            (c, _) => out.push(c),
        }
        line_start = out.ends_with('\n') || (line_start && out.ends_with(char::is_whitespace));
    }
    out
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn skip_until(chars: &mut Chars<'_>, out: &mut String, end: impl Fn(char, char) -> bool) {
    let mut before = ' ';
    for c in chars.by_ref() {
        out.push(if c == '\n' { '\n' } else { ' ' });
        if end(before, c) {
            return;
        }
        before = c;
    }
}

/// To the end of the line that does not end in a backslash.
fn skip_directive(chars: &mut Chars<'_>, out: &mut String) {
    skip_until(chars, out, |before, c| c == '\n' && before != '\\');
}

fn skip_literal(chars: &mut Chars<'_>, out: &mut String, quote: char) {
    let mut escaped = false;
    out.push(' ');
    for c in chars.by_ref() {
        out.push(if c == '\n' { '\n' } else { ' ' });
        if c == quote && !escaped {
            return;
        }
        escaped = c == '\\' && !escaped;
    }
}

/// Preprocessor definitions of several lines.
fn long_macros(file: &File) -> Vec<Function> {
    let lines: Vec<&str> = file.text.lines().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let first = at;
        while lines[at].trim_end().ends_with('\\') && at + 1 < lines.len() {
            at += 1;
        }
        let name = lines[first].trim_start().strip_prefix("#define ");
        if let (Some(name), true) = (name, at > first) {
            let name = name.split(['(', ' ']).next().unwrap_or("").to_string();
            let lines = at - first + 1;
            found.push(Function { file: file.path.clone(), line: first + 1, name, lines, test: false });
        }
        at += 1;
    }
    found
}
