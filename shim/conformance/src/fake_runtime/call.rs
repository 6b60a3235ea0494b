//! Command lines of runc and crun.

use std::env;
use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use nix::unistd::Pid;
use serde_json::json;

use super::NAME;

/// A command line: flags anywhere, the verb, its operands.
#[derive(Default)]
pub(super) struct Call {
    pub(super) verb: String,
    pub(super) operands: Vec<String>,
    flags: Vec<(String, String)>,
}

/// Flags of runc and crun that take a value.
const VALUED: [&str; 18] = [
    "root",
    "log",
    "log-format",
    "bundle",
    "b",
    "pid-file",
    "console-socket",
    "process",
    "p",
    "resources",
    "r",
    "format",
    "f",
    "image-path",
    "work-path",
    "empty-ns",
    "manage-cgroups-mode",
    "parent-path",
];

impl Call {
    pub(super) fn parse(mut arguments: impl Iterator<Item = String>) -> Call {
        let mut call = Call::default();
        while let Some(argument) = arguments.next() {
            let flag = argument
                .strip_prefix("--")
                .or_else(|| argument.strip_prefix('-').filter(|flag| !flag.is_empty()));
            match flag {
                Some(flag) if flag.contains('=') => {
                    let (name, value) = flag.split_once('=').unwrap();
                    call.flags.push((name.to_owned(), value.to_owned()));
                }
                Some(flag) if VALUED.contains(&flag) && !(call.verb == "delete" && flag == "f") => {
                    call.flags.push((flag.to_owned(), arguments.next().expect("a value")));
                }
                Some(flag) => call.flags.push((flag.to_owned(), String::new())),
                None if call.verb.is_empty() => call.verb = argument,
                None => call.operands.push(argument),
            }
        }
        call
    }

    pub(super) fn flag(&self, names: &[&str]) -> Option<&str> {
        self.flags.iter().find(|(name, _)| names.contains(&name.as_str())).map(|(_, value)| value.as_str())
    }

    /// The names of all flags, in order.
    pub(super) fn flag_names(&self) -> String {
        let names: Vec<&str> = self.flags.iter().map(|(name, _)| name.as_str()).collect();
        names.join(" ")
    }

    pub(super) fn id(&self) -> Result<&str, &'static str> {
        self.operands.first().map(String::as_str).ok_or("container id cannot be empty")
    }

    pub(super) fn state_dir(&self) -> Result<PathBuf, &'static str> {
        let root = self.flag(&["root"]).map_or_else(|| env::temp_dir().join(NAME), PathBuf::from);
        Ok(root.join(self.id()?))
    }

    /// The init's pid; the error is runc's.
    pub(super) fn pid(&self) -> Result<Pid, Box<dyn Error>> {
        let file = self.state_dir()?.join("pid");
        let text = fs::read_to_string(file).map_err(|_missing| "container does not exist")?;
        Ok(text.parse().map(Pid::from_raw)?)
    }

    pub(super) fn report(&self, message: &str) {
        if let Some(path) = self.flag(&["log"]) {
            let entry = json!({ "level": "error", "msg": message, "time": "2026-11-21T00:00:00Z" });
            let mut log = OpenOptions::new().append(true).create(true).open(path).unwrap();
            writeln!(log, "{entry}").unwrap();
        }
        eprintln!("{message}");
    }
}
