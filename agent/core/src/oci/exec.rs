//! A further process in a running container.
//!
//! Source: containerd `internal/cri/server/container_execsync.go` `execInternal`: the container's own process with other
//! arguments.

use oci_spec::runtime::{Process, Spec};

use super::ConfigError;

/// Whether the process gets a terminal of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecTerminal {
    /// Three pipes.
    None,
    /// One terminal.
    Own,
}

/// The process to run beside that of `spec`: as the same user, with the same capabilities, environment and directory.
///
/// # Errors
///
/// When there is nothing to run, or no text of it can be given to a process.
pub fn exec_process(spec: &Spec, command: &[String], terminal: ExecTerminal) -> Result<Process, ConfigError> {
    let Some(mut process) = spec.process().clone().filter(|_| !command.is_empty()) else {
        return Err(ConfigError::NoCommand);
    };
    if command.iter().any(|word| word.contains('\0')) {
        return Err(ConfigError::Nul { what: "argument" });
    }
    process.set_args(Some(command.to_vec())).set_terminal(Some(terminal == ExecTerminal::Own));
    if terminal == ExecTerminal::Own {
        let env = process.env_mut().get_or_insert_default();
        let term = "TERM=xterm".to_owned();
        match env.iter_mut().find(|entry| entry.starts_with("TERM=")) {
            Some(entry) => *entry = term,
            None => env.push(term),
        }
    }
    Ok(process)
}
