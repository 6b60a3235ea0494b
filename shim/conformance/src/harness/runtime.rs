//! OCI runtimes for shims to use.

use std::env;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::program::write_program;
use crate::fake_runtime;

/// An OCI runtime.
#[derive(Debug, Clone)]
pub struct Runtime {
    binary: Binary,
    name: String,
}

/// What is run.
#[derive(Debug, Clone)]
enum Binary {
    /// This program under another name.
    Fake,
    Real {
        program: PathBuf,
        args: Vec<String>,
    },
}

impl Runtime {
    /// The runtime without containers. The calling program's `main` must begin with [`fake_runtime::is_called`].
    pub fn fake() -> Runtime {
        Runtime { binary: Binary::Fake, name: "fake".to_owned() }
    }

    /// A runtime that makes containers, with arguments to put before each of its commands.
    pub fn real(program: &Path, args: Vec<String>) -> Runtime {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Runtime { binary: Binary::Real { program: program.to_owned(), args }, name }
    }

    /// What tests call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether its containers have a root filesystem and namespaces of their own.
    pub fn contains(&self) -> bool {
        matches!(self.binary, Binary::Real { .. })
    }

    /// The one path by which a shim calls it. `dir` is where a program may be put that leads to it.
    pub(crate) fn entry(&self, dir: &Path) -> PathBuf {
        match &self.binary {
            Binary::Fake => {
                let link = dir.join(fake_runtime::NAME);
                symlink(env::current_exe().unwrap(), &link).unwrap();
                link
            }
            Binary::Real { program, args } if args.is_empty() => program.clone(),
            Binary::Real { program, args } => {
                let script = dir.join(&self.name);
                let call = format!("#!/bin/sh\nexec {} {} \"$@\"\n", program.display(), args.join(" "));
                write_program(&script, &call);
                script
            }
        }
    }
}
