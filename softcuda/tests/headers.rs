//! softcuda's headers: clean C and C++, and in agreement with NVIDIA's in every number, layout and prototype that they
//! declare.
//!
//! A program that prints every enumerator, constant, size and offset is made from our headers' text and compiled
//! against each side's headers; what the two print must be the same. Typedefs and prototypes are declared once more,
//! word for word, after NVIDIA's: a compiler accepts that only if they are the same.

mod support;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use support::Headers;

const HEADERS: [&str; 2] = ["cuda.h", "cuda_runtime_api.h"];

/// Constants that may differ: the version of the API, and what stands for nothing.
const OWN: [&str; 6] = ["CUDA_VERSION", "CUDART_VERSION", "CUDAAPI", "CUDARTAPI", "CUDA_CB", "CUDART_CB"];

/// What our headers declare.
#[derive(Default)]
struct Declared {
    /// Enumerators and constants.
    numbers: Vec<String>,
    /// Types with members: how C calls them, and each member, `a.b` for one inside another.
    records: Vec<(String, Vec<String>)>,
    /// Typedefs of something declared elsewhere, and prototypes, as they stand.
    redeclarable: Vec<String>,
    /// `cuMemAlloc` → `cuMemAlloc_v2`.
    renamed: Vec<(String, String)>,
}

/// The text of our headers after the preprocessor, without the system's.
fn preprocessed() -> String {
    let source = support::scratch("ours.c");
    fs::write(&source, HEADERS.map(|h| format!("#include <{h}>\n")).concat()).expect("scratch");
    let include = format!("-I{}", support::include_dir().display());
    let text = support::output(support::compiler(&source).args(["-E", &include]).arg(&source));
    let mut ours = false;
    let mut kept = String::new();
    for line in text.lines() {
        match line.strip_prefix("# ") {
            Some(marker) => ours = marker.contains("/softcuda/include/"),
            None if ours => kept += &format!("{line}\n"),
            None => {}
        }
    }
    kept
}

/// Splits at `separator` outside of brackets.
fn split(text: &str, separator: char) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for c in text.chars() {
        depth += i32::from("({[".contains(c)) - i32::from(")}]".contains(c));
        if c == separator && depth == 0 {
            parts.push(String::new());
        } else {
            parts.last_mut().expect("there is one").push(c);
        }
    }
    let words = parts.iter().map(|p| p.split_whitespace().collect::<Vec<_>>().join(" "));
    words.filter(|p| !p.is_empty()).collect()
}

/// The members of a record's body, those of inner records as `inner.member`.
fn members(body: &str) -> Vec<String> {
    let mut found = Vec::new();
    for declaration in split(body, ';') {
        if let Some((before, after)) = declaration.rsplit_once('}') {
            let outer = after.trim();
            let inner = before.split_once('{').map_or("", |(_, inner)| inner);
            if outer.is_empty() {
                // Members of a nameless union are the record's own.
                found.extend(members(inner));
                continue;
            }
            found.push(outer.to_owned());
            found.extend(members(inner).iter().map(|m| format!("{outer}.{m}")));
        } else {
            for one in split(&declaration, ',') {
                let name = one.split('[').next().unwrap_or("").rsplit([' ', '*']).next();
                found.extend(name.map(str::to_owned));
            }
        }
    }
    found
}

fn parse(text: &str) -> Declared {
    let mut declared = Declared::default();
    for item in split(text, ';') {
        let Some((head, rest)) = item.split_once('{') else {
            // `typedef struct X X;` names the type of a C++ program.
            if !item.starts_with("typedef struct dim3") {
                declared.redeclarable.push(item);
            }
            continue;
        };
        let (body, name) = rest.rsplit_once('}').expect("brackets are in pairs");
        if head.contains("enum") {
            let names = split(body, ',').into_iter();
            declared.numbers.extend(names.map(|n| n.split(' ').next().unwrap_or("").to_owned()));
        } else {
            let name = if name.trim().is_empty() { head.trim() } else { name.trim() };
            declared.records.push((name.to_owned(), members(body)));
        }
    }
    declared
}

/// Adds the constants, which the preprocessor eats.
fn constants(declared: &mut Declared) {
    for header in ["cuda.h", "softcuda_graph.h", "softcuda_green.h", "driver_types.h", "cuda_runtime_api.h"] {
        let text = fs::read_to_string(support::include_dir().join(header)).expect("our header is there");
        for definition in text.lines().filter_map(|l| l.strip_prefix("#define ")) {
            let Some((name, value)) = definition.split_once(' ') else {
                continue;
            };
            if name.starts_with("SOFTCUDA") || OWN.contains(&name) {
                continue;
            }
            if value.starts_with("cu") {
                declared.renamed.push((name.to_owned(), value.to_owned()));
            } else {
                declared.numbers.push(name.to_owned());
            }
        }
    }
}

fn declared() -> Declared {
    let mut declared = parse(&preprocessed());
    constants(&mut declared);
    declared
}

fn includes() -> String {
    HEADERS.map(|h| format!("#include <{h}>\n")).concat()
}

/// The program that prints the facts.
fn facts_source(declared: &Declared) -> String {
    let mut c = includes() + "#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n";
    for name in &declared.numbers {
        writeln!(c, "  printf(\"{name} %lld\\n\", (long long)({name}));").expect("a String takes all");
    }
    for (record, members) in &declared.records {
        writeln!(c, "  printf(\"{record} %zu\\n\", sizeof({record}));").expect("a String takes all");
        // Reserved members shrink when a new version finds a use for them; the record's size is what counts.
        for member in members.iter().filter(|m| !m.contains("reserved")) {
            let size = format!("sizeof((({record} *)0)->{member})");
            writeln!(c, "  printf(\"{record}.{member} %zu %zu\\n\", offsetof({record}, {member}), {size});")
                .expect("a String takes all");
        }
    }
    c + "  return 0;\n}\n"
}

fn facts(declared: &Declared, headers: Headers) -> Option<String> {
    let source = support::scratch(&format!("facts-{headers:?}.c"));
    fs::write(&source, facts_source(declared)).expect("the scratch folder is writable");
    let program = source.with_extension("");
    let mut command = support::compiler(&source);
    command.args(headers.arguments()?).arg("-Wno-pedantic").arg("-o").arg(&program).arg(&source);
    support::output(&mut command);
    Some(support::output(&mut Command::new(&program)))
}

/// How the preprocessor spells these names after NVIDIA's headers.
fn spellings(names: &[&str], nvidia: &[String]) -> Vec<String> {
    const MARK: &str = "names_from_here_on";
    let source = support::scratch("spellings.c");
    let text = format!("{}{MARK}\n{}\n", includes(), names.join("\n"));
    fs::write(&source, text).expect("the scratch folder is writable");
    let text = support::output(support::compiler(&source).args(nvidia).args(["-E", "-P"]).arg(&source));
    let after = text.split(MARK).nth(1).expect("the mark is in our file");
    after.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_parser_sees_what_there_is() {
    let declared = declared();
    let has = |name: &str| declared.numbers.iter().any(|n| n == name);
    assert!(has("CUDA_ERROR_UNKNOWN") && has("cudaErrorUnknown") && has("cudaHostAllocPortable"));
    let (_, properties) = declared.records.iter().find(|(n, _)| n == "struct cudaDeviceProp").expect("it is declared");
    assert!(properties.contains(&"maxGridSize".into()) && properties.len() > 80, "{properties:?}");
    let (_, value) = declared.records.iter().find(|(n, _)| n == "CUlaunchAttributeValue").expect("declared");
    assert!(value.contains(&"clusterDim.z".into()), "{value:?}");
    assert!(declared.redeclarable.iter().any(|d| d.starts_with("CUresult cuLaunchKernel(")));
    assert!(declared.renamed.contains(&("cuMemAlloc".into(), "cuMemAlloc_v2".into())));
}

#[test]
fn numbers_and_layouts_are_nvidias() {
    let declared = declared();
    let ours = facts(&declared, Headers::Ours).expect("our headers are always there");
    let Some(theirs) = facts(&declared, Headers::Nvidia) else {
        return;
    };
    let differing: Vec<_> = ours.lines().zip(theirs.lines()).filter(|(a, b)| a != b).collect();
    assert!(differing.is_empty(), "ours, NVIDIA's: {differing:#?}");
    assert_eq!(ours.lines().count(), theirs.lines().count());
}

#[test]
fn prototypes_and_typedefs_are_nvidias() {
    let Some(nvidia) = Headers::Nvidia.arguments() else {
        return;
    };
    let declared = declared();
    let source = support::scratch("redeclared.c");
    let text = includes() + &declared.redeclarable.iter().map(|d| format!("{d};\n")).collect::<String>();
    fs::write(&source, text).expect("the scratch folder is writable");
    support::output(support::compiler(&source).args(&nvidia).args(["-fsyntax-only"]).arg(&source));
}

#[test]
fn versioned_names_are_nvidias() {
    let Some(nvidia) = Headers::Nvidia.arguments() else {
        return;
    };
    let declared = declared();
    let names: Vec<_> = declared.renamed.iter().map(|(name, _)| name.as_str()).collect();
    let wanted: Vec<_> = declared.renamed.iter().map(|(_, symbol)| symbol.clone()).collect();
    assert_eq!(spellings(&names, &nvidia), wanted);
}

#[test]
fn every_header_stands_alone_and_is_clean() {
    let headers = fs::read_dir(support::include_dir()).expect("our headers are there");
    for header in headers.map(|h| h.expect("it is readable").file_name()) {
        let header = header.to_string_lossy();
        for (language, standards) in [("c", ["c99", "c11"]), ("cpp", ["c++11", "c++20"])] {
            let source = support::scratch(&format!("alone-{header}.{language}"));
            fs::write(&source, format!("#include <{header}>\n#include <{header}>\nint used;\n")).expect("scratch");
            for standard in standards {
                clean(&source, standard);
            }
        }
    }
}

fn clean(source: &Path, standard: &str) {
    let mut command = support::compiler(source);
    command.args(Headers::Ours.arguments().expect("our headers are always there"));
    support::output(command.arg(format!("-std={standard}")).arg("-fsyntax-only").arg(source));
}
