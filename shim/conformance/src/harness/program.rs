//! Programs that a test makes.
//!
//! Another process writes them. What this one has open for writing, a child that another of its threads has just forked
//! has open too, until it runs its own program; and as long as anybody has a program open for writing, it cannot be run.

use std::path::Path;
use std::process::Command;

/// Makes a program of a text, which begins with what runs it.
pub fn write_program(path: &Path, text: &str) {
    let script = r#"printf %s "$2" >"$1" && chmod 755 "$1""#;
    write_by(Command::new("/bin/sh").args(["-c", script, "sh"]).arg(path).arg(text), path);
}

/// Makes a program that is the same as another, with its mode.
pub fn copy_program(from: &Path, to: &Path) {
    write_by(Command::new("cp").arg("-p").arg(from).arg(to), to);
}

fn write_by(command: &mut Command, path: &Path) {
    let output = command.output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} was not made: {words}", path.display());
}
