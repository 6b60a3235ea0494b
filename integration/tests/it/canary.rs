//! Where a secret is told, in whatever form it is written.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use berth_integration::files::{list_if_there, read_if_there, there};
use berth_integration::lab::World;
use berth_integration::node::Node;
use berth_integration::wait::{self, Look};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use nix::sys::signal::Signal;

use crate::kit::SOON;

/// What is looked for: the forms of one secret.
#[derive(Debug)]
pub(crate) struct Canary(Vec<Vec<u8>>);

impl Canary {
    /// A secret as it is, in base64 of either alphabet wherever it begins in what was encoded, and in hexadecimal. What JSON escapes is
    /// not to be in it: then it is the same there.
    pub(crate) fn of(secret: &str) -> Result<Self> {
        ensure!(secret.len() >= 12, "too short to be found in base64");
        ensure!(serde_json::to_string(secret)? == format!("\"{secret}\""), "JSON writes it otherwise");
        let mut forms = BTreeSet::from([secret.as_bytes().to_vec()]);
        for before in 0..3 {
            let bytes = [&b"..."[..before], secret.as_bytes()].concat();
            // Sextets that hold bits of what is before or behind are left out.
            let (first, last) = ((before * 8).div_ceil(6), bytes.len() * 8 / 6);
            for text in [STANDARD_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)] {
                forms.insert(text.as_bytes()[first..last].to_vec());
            }
        }
        let hex = |byte: &u8| format!("{byte:02x}");
        let hex: String = secret.as_bytes().iter().map(hex).collect();
        forms.extend([hex.to_uppercase().into_bytes(), hex.into_bytes()]);
        Ok(Self(forms.into_iter().collect()))
    }

    /// Whether it is in these bytes, in any form.
    pub(crate) fn is_in(&self, bytes: &[u8]) -> bool {
        self.0.iter().any(|form| bytes.windows(form.len()).any(|window| window == form))
    }

    /// The files below a directory that tell it, but for what is at and below places that are left out. There is one to look at. What
    /// is no file, and what goes meanwhile, tells nothing.
    pub(crate) fn files(&self, dir: &Path, is_left_out: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>> {
        let (mut found, mut looked_at) = (Vec::new(), 0);
        let mut open = vec![dir.to_owned()];
        while let Some(path) = open.pop() {
            let meta =
                there(fs::symlink_metadata(&path)).with_context(|| format!("look at {}", path.display()))?;
            let Some(meta) = meta.filter(|_| !is_left_out(&path)) else { continue };
            if meta.is_dir() {
                open.extend(list_if_there(&path)?);
            } else if meta.is_file() {
                let bytes = there(fs::read(&path)).with_context(|| format!("read {}", path.display()))?;
                looked_at += 1;
                found.extend(bytes.filter(|bytes| self.is_in(bytes)).map(|_| path));
            }
        }
        ensure!(looked_at > 0, "there is no file in {}", dir.display());
        Ok(found)
    }

    /// The variables and command lines of a process and of all below it that tell it.
    pub(crate) fn processes(&self, root: u32) -> Result<Vec<String>> {
        let mut found = Vec::new();
        let mut open = vec![root];
        while let Some(pid) = open.pop() {
            for what in ["environ", "cmdline"] {
                let path = format!("/proc/{pid}/{what}");
                let bytes = there(fs::read(&path)).with_context(|| format!("read {path}"))?;
                found.extend(bytes.filter(|bytes| self.is_in(bytes)).map(|_| path));
            }
            for thread in list_if_there(format!("/proc/{pid}/task"))? {
                let children = read_if_there(thread.join("children"))?.unwrap_or_default();
                open.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            }
        }
        Ok(found)
    }
}

/// Lets whatever this process starts from now on leave a core dump of any size where it runs, which is in a directory of the test's.
pub(crate) fn allow_core_dumps() -> Result<()> {
    env::set_current_dir(World::here()?.root())?;
    setrlimit(Resource::RLIMIT_CORE, RLIM_INFINITY, RLIM_INFINITY)?;
    let another = Command::new("/bin/sh").args(["-c", "kill -ABRT $$"]).status()?;
    ensure!(another.core_dumped(), "this machine leaves no core dumps of anybody: {another}");
    Ok(())
}

/// The agent's memory is on no disk after a crash, though [`allow_core_dumps`] let it be. The next agent goes on.
pub(crate) fn is_in_no_core_dump(node: &mut Node) -> Result<()> {
    node.agent.signal(Signal::SIGABRT)?;
    let ended = wait::until("the agent to crash", SOON, || {
        Ok(node.agent.status()?.map_or_else(|| Look::NotYet("it lives".to_owned()), Look::Ready))
    })?;
    ensure!(ended.signal() == Some(Signal::SIGABRT as i32) && !ended.core_dumped(), "it ended with {ended}");
    node.agent.start()
}

/// Every form is found, wherever the secret begins.
pub(crate) fn is_found_in_every_form() -> Result<()> {
    let secret = "canary-7f3a91";
    let canary = Canary::of(secret)?;
    for before in ["", "a", "ab", "abc", "{\"k\":\""] {
        let text = format!("{before}{secret}\"}}");
        for form in [
            text.clone(),
            base64::engine::general_purpose::STANDARD.encode(&text),
            base64::engine::general_purpose::URL_SAFE.encode(&text),
            text.bytes().map(|byte| format!("{byte:02X}")).collect(),
        ] {
            ensure!(canary.is_in(format!("x {form} x").as_bytes()), "not found in {form}");
        }
    }
    ensure!(!canary.is_in(b"canary-8f3a91 Y2FuYXJ5LThmM2E5MQ=="), "another one is found");
    Ok(())
}
