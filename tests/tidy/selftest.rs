//! Each rule catches what it is for, and lets pass what it should.

use crate::rules::{self, Exception, Finding, Purity};
use crate::rust::scan;
use crate::tree::{File, mark_tests};
use crate::{ORDERS, cpp, text};

/// The lines that have findings.
fn lines(findings: &[Finding]) -> Vec<usize> {
    let mut lines: Vec<usize> = findings.iter().map(|finding| finding.line).collect();
    lines.dedup();
    lines
}

#[test]
fn imports_upwards_are_found() {
    let text = "use crate::error::Error;\n\
        use crate::{params::Params, launch::{self, Plan}};\n\
        fn f() { let x = crate::abi::call(); }\n\
        macro_rules! m { () => { crate::group::start() } }\n\
        use super::launch::X;\n\
        use super::super::launch::X;\n\
        #[cfg(test)]\nmod tests { use crate::abi::Y; }\n\
        use log::info;\n";
    let in_mod = scan("src/comm/mod.rs", text);
    assert_eq!(lines(&rules::import_order(&in_mod, &ORDERS)), [2, 3, 4, 5]);
    let deeper = scan("src/comm/init.rs", text);
    assert_eq!(lines(&rules::import_order(&deeper, &ORDERS)), [2, 3, 4, 6]);
    let below = scan("src/abi/mod.rs", text);
    assert!(rules::import_order(&below, &ORDERS).is_empty());
}

#[test]
fn a_super_in_an_inline_module_is_resolved() {
    let source = scan("src/log.rs", "mod inner { use super::super::comm::Comm; use super::X; }");
    assert_eq!(rules::import_order(&source, &ORDERS).len(), 1);
}

#[test]
fn modules_for_tests_are_skipped() {
    let mut sources = [
        scan("src/log/mod.rs", "#[cfg(test)]\nmod tests;\nmod line;"),
        scan("src/log/tests.rs", "use crate::abi::X;"),
        scan("src/log/tests/deep.rs", "use crate::abi::X;"),
        scan("src/log/line.rs", "#[cfg(all(test, unix))] mod checks;\nuse crate::abi::X;"),
        scan("src/log/line/checks.rs", "use crate::abi::X;"),
    ];
    mark_tests(&mut sources);
    let bad = sources.iter().flat_map(|source| rules::import_order(source, &ORDERS));
    let files: Vec<String> = bad.map(|finding| finding.file).collect();
    assert_eq!(files, ["src/log/line.rs"]);
}

#[test]
fn code_that_is_not_for_tests_is_not_skipped() {
    let text = "#[cfg(not(test))]\nuse crate::abi::X;\n#[cfg(test)]\nuse crate::abi::Y;\nuse crate::abi::Z;";
    assert_eq!(lines(&rules::import_order(&scan("src/log.rs", text), &ORDERS)), [2, 5]);
}

#[test]
fn unknown_rooms_are_found() {
    let file = |path: &str| File { path: path.to_string(), text: String::new() };
    let files = [file("src/attic/mod.rs"), file("src/comm/x.rs"), file("src/lib.rs"), file("src/log.rs")];
    let found = rules::unknown_rooms(&files, &ORDERS);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].file, "src/attic/mod.rs");
    let files = ["softcuda/src/bin/x.rs", "softcuda/src/graph/x.rs", "softcuda/src/comm/x.rs"].map(file);
    assert_eq!(rules::unknown_rooms(&files, &ORDERS).len(), 1);
}

#[test]
fn each_crate_has_an_order_of_its_own() {
    // `context` stands above `memory` in softcuda and nowhere in oxccl.
    let text = "use crate::context::Context;\nuse crate::error::X;\nfn f() { super::super::driver::g() }";
    assert_eq!(lines(&rules::import_order(&scan("softcuda/src/memory/x.rs", text), &ORDERS)), [1, 3]);
    assert!(rules::import_order(&scan("softcuda/src/abi/x.rs", text), &ORDERS).is_empty());
    assert!(rules::import_order(&scan("src/plan/x.rs", text), &ORDERS).is_empty());
}

#[test]
fn fields_are_counted() {
    let text = "struct None;\nstruct Two { a: Map<(u8, u8), fn(u8) -> u8>, b: [u8; 2] }\n\
        pub struct Three<T, U>(T, pub Vec<U>, u8,) where T: X<U>;\n\
        #[derive(X)]\n#[repr(C, align(8))]\npub(crate) struct C { a: u8 }\n\
        #[cfg(test)] mod tests { struct T(u8); }";
    let found = scan("src/x.rs", text).structs;
    let counted: Vec<_> =
        found.iter().map(|found| (found.name.as_str(), found.fields, found.by_c, found.test)).collect();
    assert_eq!(
        counted,
        [("Two", 2, false, false), ("Three", 3, false, false), ("C", 1, true, false), ("T", 1, false, true)]
    );
}

#[test]
fn structs_with_many_fields_are_found() {
    let text = "struct A(u8, u8);\nstruct B(u8, u8, u8);\n#[repr(C)]\nstruct C(u8, u8, u8);\n#[cfg(test)] struct T(u8, u8, u8);";
    let sources = [scan("src/x.rs", text)];
    let with = |name, fields| lines(&rules::many_fields(&sources, 2, &[Exception { file: "src/x.rs", name, fields }]));
    assert_eq!(lines(&rules::many_fields(&sources, 2, &[])), [2]);
    assert!(with("B", 3).is_empty());
    // One too few, one too many, and one that no struct needs.
    assert_eq!((with("B", 2), with("B", 4)), (vec![2], vec![2]));
    assert_eq!(with("A", 3), [2, 1]);
}

#[test]
fn types_are_listed() {
    let text = "pub(crate) struct Unit;\nenum Choice { A }\nunion Bits { a: u8 }\npub unsafe trait Trait { type Inner; }\n\
        type Alias<T> = Vec<T>;\nimpl Trait for Unit { type Inner = u8; }\nmod m {\ntype Deep = u8; }\n\
        macro_rules! m { ($name:ident) => { pub struct $name;\nstruct Made; } }\n\
        fn f() { a.union(b); type Local = u8; }\n\
        #[cfg(test)] mod tests { struct InTests(u8); }";
    let found = scan("src/x.rs", text).types;
    let listed: Vec<_> = found.iter().map(|found| (found.name.as_str(), found.line, found.test)).collect();
    let product = [("Unit", 1), ("Choice", 2), ("Bits", 3), ("Trait", 4), ("Alias", 5), ("Deep", 8), ("Made", 10)];
    let mut expected = product.map(|(name, line)| (name, line, false)).to_vec();
    expected.push(("InTests", 12, true));
    assert_eq!(listed, expected);
}

#[test]
fn types_that_share_a_name_are_found() {
    let tests = "#[cfg(test)]\nmod tests {\nenum A {}\nstruct InTests;\n}";
    let mut sources = [
        scan("src/a.rs", "#[cfg(test)]\nmod tests;\nstruct A;\nstruct B { a: A }"),
        scan("src/a/tests.rs", "struct InTests;\ntrait C {}"),
        scan("src/b.rs", &format!("type B = u8;\nenum C {{ A, B }}\nimpl X for C {{ type A = u8; }}\n{tests}")),
    ];
    mark_tests(&mut sources);
    let found = rules::shared_names(&sources);
    let places: Vec<_> = found.iter().map(|finding| (finding.file.as_str(), finding.line)).collect();
    assert_eq!(places, [("src/b.rs", 1), ("src/a/tests.rs", 2), ("src/b.rs", 6)]);
    assert_eq!(found[0].text, "`B` is a type at src/a.rs:4, too");
    assert!(rules::shared_names(&sources[..1]).is_empty());
}

#[test]
fn impurity_is_found() {
    let rule = [Purity { path: "src/plan/", except: &["src/plan/io/"], forbidden: &["std::net", "crate::sys"] }];
    let text = "use std::{fmt, net::TcpStream};\nuse std::nets;\nuse super::super::sys::x;\nfn f() { crate::sys::g() }";
    assert_eq!(lines(&rules::purity(&scan("src/plan/ring.rs", text), &rule)), [1, 3, 4]);
    assert!(rules::purity(&scan("src/plan/io/x.rs", text), &rule).is_empty());
    assert!(rules::purity(&scan("src/comm/x.rs", text), &rule).is_empty());
}

#[test]
fn unsafe_outside_of_its_rooms_is_found() {
    let allowed = ["src/sys/", "src/comm/arena.rs"];
    let text = "fn f() { unsafe { g() } }\n#[unsafe(no_mangle)] fn x() {}\ntype T = unsafe extern \"C\" fn(i32);\n\
        macro_rules! m { () => { unsafe { g() } } }\n#[cfg(test)] mod t { fn f() { unsafe { g() } } }\n\
        unsafe impl Send for X {}\nunsafe extern \"C\" { fn c(); }";
    let count = |path: &str| lines(&rules::unsafe_rooms(&scan(path, text), &allowed));
    assert_eq!(count("src/comm/init.rs"), [1, 2, 4, 6, 7]);
    for path in ["src/sys/x.rs", "src/sys.rs", "src/comm/arena.rs"] {
        assert!(count(path).is_empty(), "{path}");
    }
}

fn bare(text: &str) -> Vec<usize> {
    lines(&rules::safety_comments(&scan("src/sys/x.rs", text)))
}

#[test]
fn unsafe_without_a_reason_is_found() {
    assert_eq!(bare("fn f() {\n    unsafe { g() }\n}"), [2]);
    assert_eq!(bare("fn f() {\n    // fast\n    let x = unsafe { g() };\n}"), [3]);
    assert_eq!(bare("// SAFETY: far away.\n\nfn f() {\n    unsafe { g() }\n}"), [4]);
    assert_eq!(bare("fn f() {\n    // SAFETY: yes.\n    unsafe { g() };\n    unsafe { h() }\n}"), [4]);
    assert_eq!(bare("unsafe impl Send for X {}"), [1]);
    assert_eq!(bare("/// Does.\npub unsafe fn f() {}"), [2]);
    assert_eq!(bare("m! {\n    unsafe { g() }\n}"), [2]);
    assert_eq!(bare("#[cfg(test)]\nmod tests {\n    fn f() {\n        unsafe { g() }\n    }\n}"), [4]);
}

#[test]
fn unsafe_with_a_reason_passes() {
    for text in [
        "fn f() {\n    // SAFETY: it is.\n    unsafe { g() }\n}",
        "fn f() {\n    // SAFETY: it is,\n    // for two reasons.\n    let x =\n        a(unsafe { g() }, unsafe { h() });\n}",
        "fn f() {\n    match x {\n        // SAFETY: it is.\n        1 => unsafe { g() },\n        _ => {}\n    }\n}",
        "// SAFETY: it is.\n#[allow(x)]\nunsafe impl Send for X {}",
        "/// Does.\n///\n/// # Safety\n/// Do not.\n#[inline]\npub unsafe fn f() {}",
        "//! Calls.\n//!\n//! # Safety\n//! As the C interface says.\npub unsafe extern \"C\" fn f() {}\nunsafe fn g() {}",
        "struct S {\n    f: unsafe extern \"C\" fn(i32) -> i32,\n}",
        "#[unsafe(no_mangle)]\npub extern \"C\" fn f() {}",
    ] {
        assert_eq!(bare(text), [], "{text}");
    }
}

#[test]
fn leftovers_are_found() {
    let text =
        "fn f() { todo!() }\nfn g() { let s = \"todo!()\"; } // todo!()\nfn h() { std::dbg!(1); unimplemented![] }";
    assert_eq!(lines(&rules::leftovers(&scan("src/log.rs", text))), [1, 3]);
}

#[test]
fn functions_are_measured() {
    let text = "fn a() {\n\n}\nimpl X {\n    fn b(\n        x: i32,\n    ) -> i32\n    where\n        X: Y,\n    {\n        1\n    }\n}\n\
        trait T { fn c(); }\nm! { fn d() {\n } }\n#[test]\nfn e() {}\nfn f() {}";
    let found = scan("src/log.rs", text).functions;
    let measured: Vec<(&str, usize, bool)> = found.iter().map(|f| (f.name.as_str(), f.lines, f.test)).collect();
    assert_eq!(measured, [("a", 3, false), ("b", 8, false), ("d", 2, false), ("e", 1, true), ("f", 1, false)]);
}

#[test]
fn c_and_cpp_functions_are_measured() {
    let text = "#define TWO(x) \\\n  do { x; } while (0)\nextern \"C\" {\nint a(void) { return '{'; }\n}\n\
        namespace n {\nstruct alignas(64) S {\n  int x = 3; // }\n  S() : x(1) {\n  }\n\
          int get() const { return x; }\n};\n\
        template <class T>\nauto b(T t) -> int {\n  if (t) {\n    return 1'000;\n  }\n\
          const char *s = \"}\";\n  return 0;\n}\n}\n\
        static const int table[] = {1, 2};\nenum E { A, B };\n__device__ static void c(\n    int x)\n{\n}\n";
    let file = File { path: "kernels/x.cu".into(), text: text.into() };
    let found: Vec<(String, usize, usize)> =
        cpp::functions(&file).into_iter().map(|f| (f.name, f.line, f.lines)).collect();
    let expected = [("TWO", 1, 2), ("a", 4, 1), ("S", 9, 2), ("get", 11, 1), ("b", 13, 8), ("c", 24, 4)];
    assert_eq!(found, expected.map(|(name, line, lines)| (name.to_string(), line, lines)));
}

#[test]
fn a_tree_of_long_functions_fails() {
    let function = |lines| rules::Function { file: "f".into(), line: 1, name: "f".into(), lines, test: false };
    let mostly_short: Vec<rules::Function> = (1..=20).map(|n| function(if n % 5 == 0 { 31 } else { 30 })).collect();
    rules::share_of_short("good", mostly_short.clone(), 30);
    let mut worse = mostly_short;
    worse.push(function(31));
    assert!(std::panic::catch_unwind(|| rules::share_of_short("bad", worse, 30)).is_err());
}

#[test]
fn machine_paths_are_found() {
    let folder = ["", "home", "ann", "x"].join("/");
    let text = format!("a = \"{folder}\"\nb = src/home/x\nhttp://host/work\n$HOME/work/x\n{folder}");
    let file = File { path: "scripts/x.sh".into(), text };
    assert_eq!(lines(&rules::machine_paths(&file)), [1, 5]);
}

fn long_lines(path: &str, text: &str) -> Vec<usize> {
    lines(&text::long_lines(&File { path: path.into(), text: text.into() }))
}

#[test]
fn long_lines_are_found() {
    let (fits, long) = ("ä".repeat(text::MAX_WIDTH), "ä".repeat(text::MAX_WIDTH + 1));
    for path in ["tests/x.rs", "kernels/x.cuh", "scripts/x.sh", "docs/x.md"] {
        assert_eq!(long_lines(path, &format!("{fits}\n{long}\n\n{fits}\n{long}")), [2, 5], "{path}");
    }
    // Comments, in which a quotation is no string; strings that end before the excess.
    let words = "word ".repeat(30);
    assert_eq!(long_lines("src/x.rs", &format!("/// He said \"{words}\"")), [1]);
    assert_eq!(long_lines("src/x.rs", &format!("let x = '\"'; let y = '\\''; // \"{words}\"")), [1]);
    assert_eq!(long_lines("scripts/x.sh", &format!("echo '//' # \"{words}\"")), [1]);
    assert_eq!(long_lines("src/x.rs", &format!("f(\"short\", {words})")), [1]);
    assert_eq!(long_lines("docs/x.md", &format!("\"{words}\"")), [1]);
    // An address that is not what makes the line long.
    assert_eq!(long_lines("docs/x.md", &format!("https://a.b {words}")), [1]);
}

#[test]
fn lines_that_cannot_be_broken_pass() {
    let words = "word ".repeat(30);
    assert!(long_lines("docs/x.md", &format!("| a | {words} |")).is_empty());
    assert!(long_lines("src/x.rs", &format!("// See https://a.b/{}", "x".repeat(120))).is_empty());
    assert!(long_lines("src/x.rs", &format!("fn f<'a>() {{ g('\"', \"\\\"{words}\", 1) }}")).is_empty());
    assert!(long_lines("scripts/x.sh", &format!("echo '\"{words}'")).is_empty());
}

#[test]
fn citations_are_found() {
    let found = |text: &str| !text::citations(&File { path: "tests/x.rs".into(), text: text.into() }).is_empty();
    for text in [
        "//! Groups (spec \u{a7}4).",
        "# as nccl-abi says",
        "/// In spec 9.4, by hand.",
        "// Sizes of delta 2.2.",
        "// By NVIDIA's layout (internals A.1).",
        "//! Expected members come from the spec's rules.",
        "/// As in DESIGN.md.",
        "see docs/user-cases",
        "/// User case B5: two at once.",
    ] {
        assert!(found(text), "{text}");
    }
    for text in
        ["let spec = 9.4;", "f(spec, 3)", "// A delta of 2 bytes.", "// It has internals.", "//! ARCHITECTURE.md"]
    {
        assert!(!found(text), "{text}");
    }
}

#[test]
fn a_file_that_is_not_rust_is_told() {
    assert_eq!(rules::import_order(&scan("src/log.rs", "fn f( {"), &ORDERS).len(), 1);
}
