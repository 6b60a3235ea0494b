//! Rules of the repository that no compiler knows: each is named in ARCHITECTURE.md or CONTRIBUTING.md.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Lines a source file may have before it must be split.
const LINES_MAX: usize = 500;

/// Lines a file that is mostly tests may have.
const TEST_LINES_MAX: usize = 800;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf()
}

fn rust_files() -> Vec<PathBuf> {
    let listed = Command::new("git")
        // The clone may be another user's.
        .args(["-c", "safe.directory=*"])
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"])
        .current_dir(root())
        .output()
        .expect("git lists the files");
    assert!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
    let files: Vec<PathBuf> = String::from_utf8(listed.stdout)
        .expect("file names are UTF-8")
        .lines()
        .map(|name| root().join(name))
        .filter(|path| path.exists())
        .collect();
    assert!(files.len() > 100, "git named only {} Rust files", files.len());
    files
}

fn is_generated(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "gen")
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs")
}

#[test]
fn files_stay_small() {
    let mut long = Vec::new();
    for path in rust_files().into_iter().filter(|path| !is_generated(path)) {
        let text = fs::read_to_string(&path).expect("a source file");
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(&text).lines().count();
        let max = if is_test(&path) { TEST_LINES_MAX } else { LINES_MAX };
        if code > max {
            long.push(format!("{}: {code} lines, at most {max}", path.display()));
        }
    }
    assert!(long.is_empty(), "split by what they are about:\n{}", long.join("\n"));
}

#[test]
fn every_file_says_what_it_is_for() {
    let silent: Vec<String> = rust_files()
        .into_iter()
        .filter(|path| !is_generated(path) && !is_test(path))
        .filter(|path| !fs::read_to_string(path).expect("a source file").starts_with("//!"))
        .map(|path| path.display().to_string())
        .collect();
    assert!(silent.is_empty(), "begin with a module doc:\n{}", silent.join("\n"));
}

#[test]
fn lints_are_expected_never_allowed() {
    let allowed: Vec<String> = rust_files()
        .into_iter()
        .filter(|path| !is_generated(path))
        .filter(|path| {
            let attribute = ["#[", "allow("].concat();
            let inner = ["#![", "allow("].concat();
            let text = fs::read_to_string(path).expect("a source file");
            text.contains(&attribute) || text.contains(&inner)
        })
        .map(|path| path.display().to_string())
        .collect();
    assert!(allowed.is_empty(), "use #[expect(.., reason = \"..\")]:\n{}", allowed.join("\n"));
}

#[test]
fn unsafe_lives_in_sys() {
    let stray: Vec<String> = rust_files()
        .into_iter()
        .filter(|path| !is_generated(path) && !path.components().any(|part| part.as_os_str() == "sys"))
        .filter(|path| !path.ends_with("sys.rs") && !path.ends_with("repo.rs"))
        .filter(|path| fs::read_to_string(path).expect("a source file").contains("unsafe {"))
        .map(|path| path.display().to_string())
        .collect();
    assert!(stray.is_empty(), "move to a sys module:\n{}", stray.join("\n"));
}

/// Invariant 7: what must survive a crash of a process survives it without a disk.
#[test]
fn nothing_of_ours_waits_for_a_disk() {
    let calls = [
        "sync_all(",
        "sync_data(",
        "fsync(",
        "fdatasync(",
        "syncfs(",
        "sync_file_range(",
        "O_SYNC",
        "O_DSYNC",
    ];
    let ours = ["agent", "cni", "shim"].map(|part| root().join(part));
    let count = |path: &Path| {
        let text = without_comments(&fs::read_to_string(path).expect("a source file"));
        calls.iter().map(|call| text.matches(call).count()).sum::<usize>()
    };
    let waiting: Vec<(usize, PathBuf)> = rust_files()
        .into_iter()
        .filter(|path| ours.iter().any(|part| path.starts_with(part)))
        .map(|path| (count(&path), path))
        .filter(|(calls, _)| *calls > 0)
        .collect();
    // A certificate that a power loss has emptied locks the node out, and no pod waits for one.
    let certificates = root().join("agent/src/cluster/certificates/store.rs");
    assert_eq!(waiting, [(1_usize, certificates)], "a pod start waits for the disk, or no certificate does");
}

/// The lines of a source file that are no comments.
fn without_comments(text: &str) -> String {
    let mut is_block = false;
    let mut kept = String::new();
    for line in text.lines() {
        let start = line.trim_start();
        is_block |= start.starts_with("/*");
        if !is_block && !start.starts_with("//") {
            kept.push_str(line);
            kept.push('\n');
        }
        is_block &= !start.contains("*/");
    }
    kept
}

/// Whether a name is in a list of tests, or is that of a function with `#[test]`.
fn is_a_test(sources: &str, function: &str) -> bool {
    if [format!("\"{function}\""), format!("::{function}\"")].iter().any(|listed| sources.contains(listed)) {
        return true;
    }
    let lines: Vec<&str> = sources.lines().map(str::trim).collect();
    let definition = format!("fn {function}(");
    let mut defined = lines.iter().enumerate().filter(|(_, line)| line.contains(&definition));
    defined.any(|(at, _)| {
        let attributes =
            lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.ends_with(")]"));
        attributes.into_iter().any(|line| line.contains("test]"))
    })
}

#[test]
fn a_test_that_is_commented_out_is_none() {
    let text =
        "#[test]\nfn kept() {}\n// #[test]\n// fn gone() {}\n/*\n#[test]\nfn away() {}\n*/\nfn helper() {}\n";
    let sources = without_comments(text);
    let found = ["kept", "gone", "away", "helper"].map(|name| is_a_test(&sources, name));
    assert_eq!(found, [true, false, false, false]);
    assert!(is_a_test("test(\"crash::at\", dies)", "at"));
}

/// The modules that a source file names after a prefix such as `crate::`: `crate::a::b`, `crate::{a, c::d}`.
fn named_modules(text: &str, prefix: &str) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    for rest in text.split(prefix).skip(1) {
        let Some(list) = rest.strip_prefix('{') else {
            named.insert(first_name(rest));
            continue;
        };
        let mut depth = 0;
        let outer: String = list
            .chars()
            .map_while(|letter| {
                depth += i32::from(letter == '{') - i32::from(letter == '}');
                (depth >= 0).then_some(if depth > 0 { ' ' } else { letter })
            })
            .collect();
        let items = outer.split(',').map(|item| first_name(item.trim_start()));
        named.extend(items.filter(|name| !name.is_empty()));
    }
    named
}

fn first_name(path: &str) -> String {
    path.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
}

/// What each module in a folder names of its neighbours there, tests aside: by `super::`, and by the folder's own path.
fn module_uses(folder: &Path, own_path: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in rust_files() {
        let Ok(inner) = path.strip_prefix(folder) else { continue };
        let top = inner.components().next().expect("a file").as_os_str().to_string_lossy();
        let top = top.trim_end_matches(".rs").to_owned();
        // In deeper files `super` is another module.
        let is_deep = inner.components().count() > 1 && !inner.ends_with(format!("{top}/mod.rs"));
        let is_root = ["lib", "main", "mod"].contains(&top.as_str());
        if is_test(&path) || is_root {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source file");
        let code = without_comments(text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(&text));
        let mut named = named_modules(&code, own_path);
        if !is_deep {
            named.extend(named_modules(&code, "super::"));
        }
        uses.entry(top.clone()).or_default().extend(named.into_iter().filter(|name| *name != top));
    }
    uses
}

/// Modules that depend on each other, perhaps by way of others: what is left without those that use nothing and those that
/// nothing uses.
fn cycles(mut uses: BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    loop {
        let names: BTreeSet<String> = uses.keys().cloned().collect();
        uses.values_mut().for_each(|used| used.retain(|name| names.contains(name)));
        let used: BTreeSet<String> = uses.values().flatten().cloned().collect();
        uses.retain(|name, own| !own.is_empty() && used.contains(name));
        if uses.len() == names.len() {
            return uses.into_iter().map(|(name, used)| format!("{name} -> {used:?}")).collect();
        }
    }
}

/// The agent's modules have a direction, so that each can become a crate. So have the modules of effects.
#[test]
fn modules_of_the_agent_have_no_cycles() {
    let sources = root().join("agent/src");
    let modules = module_uses(&sources, "crate::");
    let effects = module_uses(&sources.join("effects"), "effects::");
    assert!(modules["app"].contains("effects") && effects["perform"].contains("files"), "they are read");
    for uses in [modules, effects] {
        let found = cycles(uses);
        assert!(found.is_empty(), "these depend on each other:\n{}", found.join("\n"));
    }
}

#[test]
fn a_cycle_of_modules_is_found() {
    let uses = |text: &str| named_modules(text, "crate::");
    let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(
        uses("use crate::{\n    a::{self, B},\n    c::d,\n};\nfn f() { crate::e::g() }"),
        of(&["a", "c", "e"])
    );
    let table = |pairs: &[(&str, &[&str])]| {
        pairs.iter().map(|(name, used)| ((*name).to_owned(), of(used))).collect::<BTreeMap<_, _>>()
    };
    assert!(cycles(table(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])])).is_empty());
    assert_eq!(cycles(table(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"]), ("d", &[])])).len(), 2);
}

/// Every invariant of ARCHITECTURE.md ends in a list of tests: `tests: a_test, another_test`.
#[test]
fn every_invariant_names_a_test_that_exists() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let section = text
        .split("\n## Invariants\n")
        .nth(1)
        .and_then(|rest| rest.split("\n## ").next())
        .expect("a section named Invariants");
    let sources: String = rust_files()
        .iter()
        .map(|path| without_comments(&fs::read_to_string(path).unwrap_or_default()))
        .collect();
    let mut invariants = 0;
    for item in section.split("\n* ").skip(1) {
        invariants += 1;
        let item = item.split_whitespace().collect::<Vec<_>>().join(" ");
        let tests = item.split("Tests: ").nth(1).unwrap_or_else(|| panic!("no test is named by: {item}"));
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test is named by: {item}");
        for name in names {
            let function = name.rsplit("::").next().expect("a name");
            assert!(is_a_test(&sources, function), "no test is called {name}: {item}");
        }
    }
    assert_eq!(invariants, 13, "the design has thirteen invariants");
}
