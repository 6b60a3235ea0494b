//! A CNI plugin that does what a control file says, and writes down how it was called.
//!
//! Beside the program `P` lies `P.json`, by verb: `{"ADD": {"stdout": "…", "stderr": "…", "exit": 1, …}}`. Without an
//! entry it behaves well: ADD passes the previous result on, VERSION names every version, the others print nothing. Each
//! call is one line of `calls.jsonl` in the same directory; `done.jsonl` has one more when it has ended by itself.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Behaviour {
    /// Printed on standard output, instead of the good answer.
    stdout: Option<String>,
    /// Printed on standard error.
    stderr: String,
    /// The exit code.
    exit: u8,
    /// Ends by a signal.
    abort: bool,
    /// This many bytes are printed on standard output first.
    flood: usize,
    /// This many bytes are printed on standard error first.
    stderr_flood: usize,
    /// Does not end before this file exists.
    wait_for: Option<PathBuf>,
    /// Starts a process that holds the pipes and ends only when killed; its pid is written to `child.pid`.
    leave_child: bool,
    /// What is done with standard input.
    stdin: Input,
}

#[derive(Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Input {
    #[default]
    Read,
    Ignored,
}

fn main() -> anyhow::Result<ExitCode> {
    let program = PathBuf::from(std::env::args_os().next().context("no program name")?);
    let dir = program.parent().context("no directory")?;
    let verb = std::env::var("CNI_COMMAND").context("CNI_COMMAND is not set")?;
    let behaviour = behaviour(&program, &verb)?;
    let mut stdin = Vec::new();
    if behaviour.stdin == Input::Read {
        io::stdin().read_to_end(&mut stdin)?;
    }
    let input: Value = serde_json::from_slice(&stdin).unwrap_or_default();
    let call = call(&program, &verb, &input)?;
    append(&dir.join("calls.jsonl"), &call)?;
    if behaviour.leave_child {
        let child = Command::new("/bin/sleep").arg("1000").stdin(Stdio::null()).spawn()?;
        fs::write(dir.join("child.pid"), child.id().to_string())?;
    }
    while behaviour.wait_for.as_ref().is_some_and(|path| !path.exists()) {
        sleep(Duration::from_millis(5));
    }
    if behaviour.abort {
        std::process::abort();
    }
    io::stderr().write_all(&vec![b'e'; behaviour.stderr_flood])?;
    io::stderr().write_all(behaviour.stderr.as_bytes())?;
    io::stdout().write_all(&vec![b' '; behaviour.flood])?;
    io::stdout().write_all(behaviour.stdout.unwrap_or_else(|| answer(&verb, &input)).as_bytes())?;
    io::stdout().flush()?;
    append(&dir.join("done.jsonl"), &call)?;
    Ok(ExitCode::from(behaviour.exit))
}

fn behaviour(program: &Path, verb: &str) -> anyhow::Result<Behaviour> {
    let control = program.with_extension("json");
    if !control.exists() {
        return Ok(Behaviour::default());
    }
    let mut by_verb: BTreeMap<String, Behaviour> = serde_json::from_slice(&fs::read(control)?)?;
    Ok(by_verb.remove(verb).unwrap_or_default())
}

fn call(program: &Path, verb: &str, input: &Value) -> anyhow::Result<Value> {
    let env: BTreeMap<String, String> = std::env::vars().collect();
    let mut descriptors: Vec<String> = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        // The listing's own descriptor is gone by now or shows the directory itself.
        let target = fs::read_link(entry.path()).unwrap_or_default();
        if !target.to_string_lossy().starts_with("/proc/") {
            descriptors.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    let name = program.file_name().context("no file name")?.to_string_lossy();
    Ok(json!({"plugin": name, "verb": verb, "env": env, "stdin": input, "descriptors": descriptors}))
}

fn answer(verb: &str, input: &Value) -> String {
    match verb {
        "ADD" => input.get("prevResult").cloned().unwrap_or_else(|| json!({})).to_string(),
        "VERSION" => json!({
            "cniVersion": "1.1.0",
            "supportedVersions": ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"],
        })
        .to_string(),
        _ => String::new(),
    }
}

fn append(path: &Path, line: &Value) -> io::Result<()> {
    OpenOptions::new().append(true).create(true).open(path)?.write_all(format!("{line}\n").as_bytes())
}
