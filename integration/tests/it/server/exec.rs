//! `kubectl exec`: codes, streams, input and terminals.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;

use anyhow::{Context, Result, ensure};
use berth_integration::node::system;
use nix::pty::{Winsize, openpty};

use super::kubectl::{Protocol, TARGET, ended, output, with_input};
use super::{Served, read_until};
use crate::cli::in_terminal;
use crate::suite::same;

/// Of what goes in and out again.
const CONTENT: u32 = 1 << 18;

pub(super) fn plain(served: &Served, protocol: Protocol) -> Result<()> {
    let run = |script: &str| {
        let mut command =
            protocol.kubectl(served, &["exec", TARGET, "-c", "main", "--", "sh", "-c", script])?;
        with_input(&mut command, b"")
    };
    let done = run("echo out; echo err >&2; exit 42")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&done.stderr);
    same("exit code", done.status.code(), Some(42))?;
    same("output", text(&done.stdout).as_str(), "out\n")?;
    same("the other output", said.as_str(), "err\ncommand terminated with exit code 42\n")?;
    same("code of one that is killed", run("kill -9 $$")?.status.code(), Some(137))?;
    let mut absent = protocol.kubectl(served, &["exec", TARGET, "-c", "main", "--", "/no/such/program"])?;
    let done = with_input(&mut absent, b"")?;
    let said = text(&done.stderr);
    ensure!(!done.status.success() && said.contains("/no/such/program"), "{}: {said}", done.status);

    // A megabyte in and out again; that it ends says that the end of the input was told.
    let content: Vec<u8> = (0..CONTENT).flat_map(u32::to_le_bytes).collect();
    let back =
        output(&mut protocol.kubectl(served, &["exec", "-i", TARGET, "-c", "main", "--", "cat"])?, &content)?;
    ensure!(back == content, "{} bytes came back of {}", back.len(), content.len());
    // Whoever does not want input has none.
    let none = output(
        &mut protocol.kubectl(served, &["exec", TARGET, "-c", "main", "--", "wc", "-c"])?,
        b"something",
    )?;
    same("input that nobody asked for", text(&none).trim(), "0")
}

pub(super) fn terminal(served: &Served, protocol: Protocol) -> Result<()> {
    let pty = openpty(&Winsize { ws_row: 33, ws_col: 99, ws_xpixel: 0, ws_ypixel: 0 }, None)?;
    let name = fs::read_link(format!("/proc/self/fd/{}", pty.slave.as_raw_fd()))?;
    let name = name.to_str().context("a terminal without a name")?.to_owned();
    // A terminal that nobody has open any more hangs up.
    let resized = pty.slave.try_clone()?;
    let mut child = in_terminal(
        &protocol.kubectl(served, &["exec", "-it", TARGET, "-c", "main", "--", "sh"])?,
        pty.slave,
    )?;
    let mut master = File::from(pty.master);
    master.write_all(b"stty size; echo first $((6*7))\n")?;
    let said = read_until(&mut master, "\r\nfirst 42\r\n")?;
    ensure!(said.contains("33 99"), "{said:?}");
    system("stty", &["-F", &name, "rows", "40", "cols", "120"])?;
    drop(resized);
    master.write_all(
        b"until [ \"`stty size`\" = '40 120' ]; do :; done; tty; echo second $((7*7)); exit 5\n",
    )?;
    let said = read_until(&mut master, "\r\nsecond 49\r\n")?;
    ensure!(said.contains("/dev/pts/"), "{said:?}");
    // It hangs up, with an error, when the last process of it ends.
    drop(master.read_to_end(&mut Vec::new()));
    same("exit code", ended(&mut child, "kubectl exec")?, Some(5))
}
