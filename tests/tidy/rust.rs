//! Reads a Rust file as token trees: its functions, its types, its paths, its uses of `unsafe`, its macros.
//!
//! Tokens rather than a syntax tree, because what stands inside a macro call must be seen too.

use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::rules::Function;

/// What a use of `unsafe` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsafe {
    /// `unsafe { … }`
    Block,
    /// `unsafe fn`, `unsafe extern "C" fn name`
    Function,
    /// `unsafe impl`, `unsafe trait`, `unsafe extern { … }`
    Item,
    /// `#[unsafe(no_mangle)]`: allowed in the rooms of `unsafe`, and needs no comment.
    Attribute,
}

/// A use of `unsafe`.
#[derive(Clone, Debug)]
pub struct UnsafeUse {
    pub line: usize,
    /// Lines where the statements begin that it is a part of.
    pub statements: Vec<usize>,
    pub what: Unsafe,
    pub test: bool,
}

/// A path with at least two segments, such as `crate::comm::Comm`; a `use` with braces gives one for each.
#[derive(Clone, Debug)]
pub struct PathUse {
    pub line: usize,
    pub segments: Vec<String>,
    /// The modules of this file that the path stands in, from the crate's root.
    pub module: Vec<String>,
    pub test: bool,
}

/// A macro call.
#[derive(Clone, Debug)]
pub struct MacroUse {
    pub line: usize,
    pub name: String,
}

/// A struct.
#[derive(Clone, Debug)]
pub struct StructUse {
    pub line: usize,
    pub name: String,
    pub fields: usize,
    /// `repr(C)`: what it has to have is said elsewhere.
    pub by_c: bool,
    pub test: bool,
}

/// What defines the name of a type: a struct, enum, union, trait, or an alias directly in a module; not an associated
/// type.
#[derive(Clone, Debug)]
pub struct TypeUse {
    pub line: usize,
    pub name: String,
    pub test: bool,
}

/// What was found in a file.
#[derive(Clone, Debug, Default)]
pub struct Source {
    pub path: String,
    pub lines: Vec<String>,
    pub functions: Vec<Function>,
    pub paths: Vec<PathUse>,
    pub unsafes: Vec<UnsafeUse>,
    pub macros: Vec<MacroUse>,
    pub structs: Vec<StructUse>,
    pub types: Vec<TypeUse>,
    /// Paths (without `.rs`) of the modules that `#[cfg(test)] mod x;` declares.
    pub test_modules: Vec<String>,
    /// Why the file could not be read as Rust.
    pub broken: Option<String>,
}

impl Source {
    /// Marks everything in the file as test code.
    pub fn mark_all_test(&mut self) {
        self.functions.iter_mut().for_each(|function| function.test = true);
        self.paths.iter_mut().for_each(|path| path.test = true);
        self.unsafes.iter_mut().for_each(|found| found.test = true);
        self.structs.iter_mut().for_each(|found| found.test = true);
        self.types.iter_mut().for_each(|found| found.test = true);
    }
}

/// Reads a file; `path` is relative to the repository's root.
pub fn scan(path: &str, text: &str) -> Source {
    let mut source =
        Source { path: path.into(), lines: text.lines().map(str::to_string).collect(), ..Source::default() };
    match text.parse::<TokenStream>() {
        Ok(tokens) => {
            let module = module_path(path);
            let test = inner_cfg_test(tokens.clone());
            Walker { source: &mut source }.walk(tokens, &Scope { module, test, items: true, statements: Vec::new() });
        }
        Err(error) => source.broken = Some(error.to_string()),
    }
    source
}

/// `src/comm/init.rs` is the module `comm::init`, `src/comm/mod.rs` is `comm`, `src/lib.rs` the root.
fn module_path(path: &str) -> Vec<String> {
    let inside = path.split_once("src/").map_or(path, |(_, rest)| rest);
    let mut parts: Vec<String> = inside.trim_end_matches(".rs").split('/').map(str::to_string).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

/// The folder where `mod x;` in this file looks for `x.rs`.
fn module_folder(path: &str) -> String {
    let path = Path::new(path);
    let stem = path.file_stem().unwrap_or_default();
    let parent = path.parent().unwrap_or(Path::new(""));
    let own = ["mod", "lib", "main"].iter().any(|root| stem == *root);
    let folder = if own { parent.to_path_buf() } else { parent.join(stem) };
    folder.to_string_lossy().into_owned()
}

fn inner_cfg_test(tokens: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    tokens.windows(3).any(|three| is_punct(&three[0], '#') && is_punct(&three[1], '!') && is_cfg_test(&three[2]))
}

/// Whether a token is `[cfg(test)]`, `[cfg(all(test, …))]`, `[test]` or the like.
fn is_cfg_test(token: &TokenTree) -> bool {
    let TokenTree::Group(group) = token else { return false };
    let first = ident(group.stream().into_iter().next().as_ref());
    if !first.is_some_and(|word| word == "cfg" || word == "test") {
        return false;
    }
    let text = group.stream().to_string().replace(' ', "");
    text == "test" || (text.starts_with("cfg(") && !text.contains("not(test)") && has_word(&text, "test"))
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word)
}

fn is_punct(token: &TokenTree, c: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == c)
}

fn ident(token: Option<&TokenTree>) -> Option<String> {
    match token {
        Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
        _ => None,
    }
}

fn line(token: &TokenTree) -> usize {
    token.span().start().line
}

#[derive(Clone)]
struct Scope {
    module: Vec<String>,
    test: bool,
    /// Directly in a module, where `type` defines an alias.
    items: bool,
    /// First lines of the statements around, up to the nearest block.
    statements: Vec<usize>,
}

struct Walker<'a> {
    source: &'a mut Source,
}

impl Walker<'_> {
    fn walk(&mut self, tokens: TokenStream, scope: &Scope) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut test_item = false; // between `#[cfg(test)]` and the end of its item
        let mut start = None; // of the statement
        for at in 0..tokens.len() {
            let token = &tokens[at];
            if is_punct(token, '#') && tokens.get(at + 1).is_some_and(is_cfg_test) {
                test_item = true;
            }
            let begin = *start.get_or_insert(line(token));
            let mut here = Scope { test: scope.test || test_item, ..scope.clone() };
            here.statements.push(begin);
            self.token(&tokens, at, &here);
            let ends = match token {
                TokenTree::Punct(punct) => matches!(punct.as_char(), ';' | ','),
                TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                _ => false,
            };
            if ends {
                start = None;
                // A comma ends a statement's part, not an item.
                test_item &= is_punct(token, ',');
            }
        }
    }

    fn token(&mut self, tokens: &[TokenTree], at: usize, scope: &Scope) {
        match &tokens[at] {
            TokenTree::Group(group) => {
                let mut inner = Scope { items: false, ..scope.clone() };
                if group.delimiter() == Delimiter::Brace {
                    let name = module_name(tokens, at);
                    inner.items = scope.items && name.is_some();
                    inner.statements.clear();
                    inner.module.extend(name);
                }
                self.walk(group.stream(), &inner);
            }
            TokenTree::Ident(word) => {
                let word = word.to_string();
                self.found_type(tokens, at, &word, scope);
                self.found_word(tokens, at, &word, scope);
            }
            _ => {}
        }
    }

    fn found_word(&mut self, tokens: &[TokenTree], at: usize, word: &str, scope: &Scope) {
        match word {
            "unsafe" => self.found_unsafe(tokens, at, scope),
            "fn" => self.found_function(tokens, at, scope),
            "mod" => self.found_module(tokens, at, scope),
            "struct" => self.found_struct(tokens, at, scope),
            name => self.found_name(tokens, at, name, scope),
        }
    }

    fn found_unsafe(&mut self, tokens: &[TokenTree], at: usize, scope: &Scope) {
        let mut next = at + 1;
        let mut foreign = false;
        while ident(tokens.get(next)).is_some_and(|word| word == "extern" || word == "async")
            || matches!(tokens.get(next), Some(TokenTree::Literal(_)))
        {
            foreign = true;
            next += 1;
        }
        let what = match tokens.get(next) {
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                if foreign {
                    Unsafe::Item
                } else {
                    Unsafe::Block
                }
            }
            Some(TokenTree::Group(_)) => Unsafe::Attribute,
            Some(TokenTree::Ident(word)) if word == "fn" => {
                // Without a name it is a type.
                if ident(tokens.get(next + 1)).is_none() {
                    return;
                }
                Unsafe::Function
            }
            Some(TokenTree::Ident(word)) if word == "impl" || word == "trait" => Unsafe::Item,
            _ => return,
        };
        let found = UnsafeUse { line: line(&tokens[at]), statements: scope.statements.clone(), what, test: scope.test };
        self.source.unsafes.push(found);
    }

    fn found_function(&mut self, tokens: &[TokenTree], at: usize, scope: &Scope) {
        let Some(name) = ident(tokens.get(at + 1)) else { return };
        for token in &tokens[at..] {
            match token {
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                    let first = line(&tokens[at]);
                    let lines = group.span_close().end().line - first + 1;
                    let file = self.source.path.clone();
                    let function = Function { file, line: first, name, lines, test: scope.test };
                    return self.source.functions.push(function);
                }
                token if is_punct(token, ';') => return, // declared only
                _ => {}
            }
        }
    }

    fn found_module(&mut self, tokens: &[TokenTree], at: usize, scope: &Scope) {
        let Some(name) = ident(tokens.get(at + 1)) else { return };
        let declared = tokens.get(at + 2).is_some_and(|token| is_punct(token, ';'));
        if declared && scope.test {
            let folder = module_folder(&self.source.path);
            self.source.test_modules.push(format!("{folder}/{name}"));
        }
    }

    fn found_struct(&mut self, tokens: &[TokenTree], at: usize, scope: &Scope) {
        let Some(name) = ident(tokens.get(at + 1)) else { return };
        let end = |token: &&TokenTree| is_punct(token, ';') || is_body(token);
        let Some(TokenTree::Group(body)) = tokens[at..].iter().find(end) else { return };
        let fields = fields(body.stream());
        let by_c = attributes(tokens, at).any(|text| text.starts_with("repr(C"));
        self.source.structs.push(StructUse { line: line(&tokens[at]), name, fields, by_c, test: scope.test });
    }

    fn found_type(&mut self, tokens: &[TokenTree], at: usize, word: &str, scope: &Scope) {
        let defines = match word {
            "struct" | "enum" | "union" | "trait" => true,
            "type" => scope.items,
            _ => false,
        };
        if let Some(name) = ident(tokens.get(at + 1)).filter(|_| defines) {
            self.source.types.push(TypeUse { line: line(&tokens[at]), name, test: scope.test });
        }
    }

    fn found_name(&mut self, tokens: &[TokenTree], at: usize, name: &str, scope: &Scope) {
        let continues = at >= 2 && is_punct(&tokens[at - 1], ':') && is_punct(&tokens[at - 2], ':');
        if tokens.get(at + 1).is_some_and(|token| is_punct(token, '!'))
            && matches!(tokens.get(at + 2), Some(TokenTree::Group(_)))
        {
            self.source.macros.push(MacroUse { line: line(&tokens[at]), name: name.to_string() });
        }
        if continues {
            return;
        }
        for (line, segments) in paths(&tokens[at..], Vec::new()) {
            let module = scope.module.clone();
            if segments.len() > 1 {
                self.source.paths.push(PathUse { line, segments, module, test: scope.test });
            }
        }
    }
}

/// The fields of a struct, in braces or in parentheses.
fn is_body(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() != Delimiter::Bracket)
}

/// How many there are between commas, but for those between angle brackets.
fn fields(body: TokenStream) -> usize {
    let (mut count, mut depth, mut empty, mut before) = (0, 0, true, ' ');
    for token in body {
        let punct = if let TokenTree::Punct(punct) = &token { punct.as_char() } else { ' ' };
        match punct {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if punct == ',' && depth == 0 {
            count += usize::from(!empty);
        }
        empty = punct == ',' && depth == 0;
        before = punct;
    }
    count + usize::from(!empty)
}

/// The attributes of the item whose keyword is at this place, without spaces.
fn attributes(tokens: &[TokenTree], at: usize) -> impl Iterator<Item = String> {
    let before = tokens[..at].iter().rev().skip_while(|token| {
        ident(Some(token)).is_some_and(|word| word == "pub")
            || matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis)
    });
    before
        .take_while(|token| {
            is_punct(token, '#') || matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket)
        })
        .filter_map(|token| match token {
            TokenTree::Group(group) => Some(group.stream().to_string().replace(' ', "")),
            _ => None,
        })
}

/// The name of the inline module whose body the group at this place is.
fn module_name(tokens: &[TokenTree], at: usize) -> Option<String> {
    let keyword = ident(tokens.get(at.checked_sub(2)?))?;
    if keyword == "mod" { ident(tokens.get(at - 1)) } else { None }
}

/// The paths that begin with the first token: one, or one for each name in braces.
fn paths(tokens: &[TokenTree], mut prefix: Vec<String>) -> Vec<(usize, Vec<String>)> {
    let Some(first) = tokens.first() else { return Vec::new() };
    match first {
        TokenTree::Ident(word) => {
            prefix.push(word.to_string());
            let colons = tokens.len() > 3 && is_punct(&tokens[1], ':') && is_punct(&tokens[2], ':');
            let deeper = if colons { paths(&tokens[3..], prefix.clone()) } else { Vec::new() };
            if deeper.is_empty() { vec![(line(first), prefix)] } else { deeper }
        }
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            let parts = inner.split(|token| is_punct(token, ','));
            parts.flat_map(|part| paths(part, prefix.clone())).collect()
        }
        _ => Vec::new(),
    }
}
