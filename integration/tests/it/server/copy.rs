//! `kubectl cp` of a large file, to a container and back.

use std::fs::{self, File};
use std::io::{self, BufReader, Read as _, Write as _};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use berth_integration::image::hex;
use sha2::{Digest as _, Sha256};

use super::kubectl::{Protocol, TARGET, output};
use super::{Served, transfer};
use crate::suite::same;

/// Bytes that are written at once.
const BLOCK: usize = 1 << 20;

pub(super) fn both_ways(served: &Served, protocol: Protocol) -> Result<()> {
    let dir = served.node.world.root();
    let (file, back) = (dir.join("file"), dir.join("back"));
    let digest = write(&file, transfer()?)?;
    let copy = |from: &str, to: &str| {
        // It would try again where the copy breaks off; nothing is to break off.
        let mut command = protocol.kubectl(served, &["cp", "--retries=0", from, to])?;
        output(&mut command, b"").map(drop)
    };
    let there = format!("{TARGET}:/tmp/file");
    copy(text(&file)?, &there)?;
    let mut inside = protocol.kubectl(served, &["exec", TARGET, "--", "sha256sum", "/tmp/file"])?;
    let said = String::from_utf8(output(&mut inside, b"")?)?;
    same("digest in the container", said.split(' ').next().unwrap_or_default(), digest.as_str())?;
    fs::remove_file(&file)?;
    copy(&there, text(&back)?)?;
    same("digest of what came back", of(&back)?, digest)?;
    fs::remove_file(&back)?;
    output(&mut protocol.kubectl(served, &["exec", TARGET, "--", "rm", "/tmp/file"])?, b"").map(drop)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is no text")
}

/// Numbers that never repeat, as bytes: each block has its place.
pub(super) fn block(number: u64) -> Vec<u8> {
    let first = number * (BLOCK as u64 / 8);
    (first..first + BLOCK as u64 / 8)
        .flat_map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect()
}

/// The digest of so many bytes, each block of which somebody is given.
pub(super) fn blocks(bytes: u64, mut to: impl FnMut(&[u8]) -> io::Result<()>) -> Result<String> {
    let mut hash = Sha256::new();
    ensure!(bytes.is_multiple_of(BLOCK as u64), "{bytes} bytes are no whole number of blocks");
    for number in 0..bytes / BLOCK as u64 {
        let block = block(number);
        hash.update(&block);
        to(&block)?;
    }
    Ok(hex(&hash.finalize()))
}

/// The digest of so many bytes that are read.
pub(super) fn digest(from: &mut impl io::Read, bytes: u64) -> Result<String> {
    let mut hash = Sha256::new();
    let mut from = from.take(bytes);
    let mut piece = vec![0; BLOCK];
    let mut all = 0;
    loop {
        let count = from.read(&mut piece)?;
        if count == 0 {
            ensure!(all == bytes, "{all} bytes of {bytes}, and then the end");
            return Ok(hex(&hash.finalize()));
        }
        all += u64::try_from(count)?;
        hash.update(&piece[..count]);
    }
}

fn write(file: &Path, bytes: u64) -> Result<String> {
    let mut out = File::create(file).with_context(|| format!("create {}", file.display()))?;
    blocks(bytes, |block| out.write_all(block))
}

fn of(file: &Path) -> Result<String> {
    let opened = File::open(file).with_context(|| format!("open {}", file.display()))?;
    let bytes = opened.metadata()?.len();
    digest(&mut BufReader::new(opened), bytes)
}
