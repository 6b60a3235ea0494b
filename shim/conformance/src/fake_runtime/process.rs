//! Processes of the node that play those of containers.

use std::fs;
use std::process::Command;

use nix::unistd::Pid;
use serde_json::Value;

/// The command of an OCI process, in an environment of its own.
pub(super) fn command_of(process: &Value) -> Result<Command, &'static str> {
    let texts = |name: &str| process[name].as_array().cloned().unwrap_or_default();
    let args: Vec<String> = texts("args").iter().filter_map(|arg| arg.as_str().map(str::to_owned)).collect();
    let (program, rest) = args.split_first().ok_or("args must not be empty")?;
    let mut command = Command::new(program);
    command.args(rest).env_clear();
    for variable in texts("env") {
        if let Some((name, value)) = variable.as_str().and_then(|variable| variable.split_once('=')) {
            command.env(name, value);
        }
    }
    Ok(command)
}

pub(super) fn is_zombie(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}
