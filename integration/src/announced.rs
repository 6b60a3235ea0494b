//! An OCI runtime that tells of each call, and in which a call can be held: what happens meanwhile falls inside it.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::libc::O_NONBLOCK;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::files;
use crate::wait::{self, Look};

/// How long a call may take to come, on a machine busy with other tests.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// The side of the real runtime's work on which a call is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Nothing has been done.
    Before,
    /// Everything has been done, and nobody knows yet.
    After,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }
}

/// The runtime: a program that stands before a real one.
#[derive(Debug)]
pub struct Announced {
    dir: PathBuf,
}

/// A call that will be held, or is.
#[derive(Debug)]
pub struct Held {
    gate: PathBuf,
}

impl Announced {
    /// Puts one named `name`, which calls the program `real`, into the directory `dir`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn install(dir: &Path, name: &str, real: &Path) -> Result<Self> {
        files::make_dir(dir)?;
        files::write_program(dir.join(name), &script(dir, real))?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// The directory of the program, to be the first in a `PATH`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Holds calls of a command, `create` say, from now on.
    ///
    /// # Errors
    /// They are held already.
    pub fn hold(&self, side: Side, command: &str) -> Result<Held> {
        let gate = self.dir.join(format!("{}-{command}", side.name()));
        mkfifo(&gate, Mode::from_bits_truncate(0o600)).with_context(|| format!("make {}", gate.display()))?;
        Ok(Held { gate })
    }

    /// How often a command was called for a container.
    ///
    /// # Errors
    /// The calls cannot be read.
    pub fn calls(&self, command: &str, container: &str) -> Result<usize> {
        let calls = files::read_if_there(self.dir.join("calls"))?.unwrap_or_default();
        let words = |call: &str| call.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let of = |call: &Vec<String>| call[0] == command && call.iter().any(|word| word == container);
        Ok(calls.lines().map(words).filter(of).count())
    }
}

impl Held {
    /// Waits until a call is held.
    ///
    /// # Errors
    /// None came.
    pub fn reached(&self) -> Result<()> {
        self.process().map(drop)
    }

    /// The process of the held call, once there is one.
    fn process(&self) -> Result<String> {
        let mark = self.gate.with_extension("reached");
        wait::until(&format!("a call to be held at {}", self.gate.display()), CALL_LIMIT, || {
            let pid = fs::read_to_string(&mark).unwrap_or_default();
            Ok(match pid.strip_suffix('\n') {
                Some(pid) => Look::Ready(pid.to_owned()),
                None => Look::NotYet("no call".to_owned()),
            })
        })
    }

    /// Lets the call go on, and waits until whoever made it has taken in how it ended.
    ///
    /// # Errors
    /// No call is held, or it does not end.
    pub fn finish(self) -> Result<()> {
        let call = Path::new("/proc").join(self.process()?);
        self.release()?;
        wait::until("the held call to end", CALL_LIMIT, || {
            Ok(if call.exists() { Look::NotYet("it goes on".to_owned()) } else { Look::Ready(()) })
        })
    }

    /// Lets the call go on, and every later one.
    ///
    /// # Errors
    /// No call is held.
    pub fn release(self) -> Result<()> {
        let gate = wait::until("the held call to listen", CALL_LIMIT, || {
            match File::options().write(true).custom_flags(O_NONBLOCK).open(&self.gate) {
                Err(failure) if failure.raw_os_error() == Some(Errno::ENXIO as i32) => {
                    Ok(Look::NotYet("nobody reads".to_owned()))
                }
                gate => Ok(Look::Ready(gate.with_context(|| format!("open {}", self.gate.display()))?)),
            }
        })?;
        files::remove(&self.gate)?;
        files::remove(self.gate.with_extension("reached"))?;
        // Its end is what the call waits for.
        drop(gate);
        Ok(())
    }

    /// Holds no further call. The one that is held stays so, until it is killed.
    ///
    /// # Errors
    /// No call was held.
    pub fn lift(self) -> Result<()> {
        files::remove(&self.gate)?;
        files::remove(self.gate.with_extension("reached"))
    }
}

/// The real runtime replaces the program unless what comes after it is to be held.
fn script(dir: &Path, real: &Path) -> String {
    format!(
        r#"#!/bin/sh
dir={dir}
for word; do
    case $word in create|start|exec|kill|delete|pause|resume|update|ps|state|features) break ;; esac
done
echo "$word $*" >> $dir/calls
hold() {{
    if [ -p $dir/$1-$word ]; then
        echo $$ > $dir/$1-$word.reached
        read -r line < $dir/$1-$word
    fi
}}
hold before
[ -p $dir/after-$word ] || exec {real} "$@"
{real} "$@"
code=$?
hold after
exit $code
"#,
        dir = dir.display(),
        real = real.display(),
    )
}
