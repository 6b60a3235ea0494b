//! Holds the checked-in code to the definitions: generates it again and compares. `UPDATE=1` writes what differs.

#![expect(clippy::unwrap_used, reason = "a failure here is the failure of the test")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use prost_build::{Config, Service, ServiceGenerator};

#[test]
fn generated_code_matches_the_definitions() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let checked_in = root.join("src/gen");
    let fresh = generate(&root.join("proto"));
    if std::env::var_os("UPDATE").is_some() {
        fs::remove_dir_all(&checked_in).or_else(not_found_is_fine).unwrap();
        fs::create_dir_all(&checked_in).unwrap();
        for (name, text) in &fresh {
            fs::write(checked_in.join(name), text).unwrap();
        }
    }
    let present = read_all(&checked_in);
    let names = |files: &BTreeMap<String, String>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&present), names(&fresh), "run this test with UPDATE=1");
    for (name, text) in &fresh {
        assert!(present[name] == *text, "src/gen/{name} is out of date: run this test with UPDATE=1");
    }
}

fn generate(definitions: &Path) -> BTreeMap<String, String> {
    let out = tempfile::tempdir().unwrap();
    let files = protox::compile(proto_files(definitions), [definitions]).unwrap();
    Config::new()
        .out_dir(out.path())
        .include_file("mod.rs")
        .btree_map(["."])
        .enable_type_names()
        .service_generator(Box::new(MethodNames))
        .compile_fds(files)
        .unwrap();
    read_all(out.path())
}

/// Emits the names that go on the wire as constants, so that neither end spells them by hand.
struct MethodNames;

impl ServiceGenerator for MethodNames {
    fn generate(&mut self, service: Service, code: &mut String) {
        let module = snake_case(&service.name);
        writeln!(code, "/// Names of the service `{}` on the wire.", service.proto_name).unwrap();
        writeln!(code, "pub mod {module}_service {{").unwrap();
        writeln!(code, "pub const NAME: &str = \"{}.{}\";", service.package, service.proto_name).unwrap();
        for method in &service.methods {
            let constant = method.name.to_uppercase();
            writeln!(code, "pub const {constant}: &str = \"{}\";", method.proto_name).unwrap();
        }
        code.push_str("}\n");
    }
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for (at, letter) in name.char_indices() {
        if letter.is_uppercase() && at > 0 {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

fn proto_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(proto_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "proto") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn read_all(dir: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap()))
        .collect()
}

fn not_found_is_fine(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}
