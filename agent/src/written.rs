//! Programs that tests write and run.

use std::{path::Path, process::Command};

/// Makes a program of a text, which begins with what runs it. Another process writes it: what this one has open for writing, a child that
/// another test has just forked has open too, and nobody can run it meanwhile.
pub(crate) fn write_program(path: &Path, text: &str) {
    let script = r#"printf %s "$2" >"$1" && chmod 755 "$1""#;
    let status = Command::new("/bin/sh").args(["-c", script, "sh"]).arg(path).arg(text).status().unwrap();
    assert!(status.success(), "{} was not made: {status}", path.display());
}
