//! Images made on the spot: Debian's static busybox with an applet link for each of its commands, or whatever files are given.

pub mod machine;

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

const BUSYBOX: &str = "/bin/busybox";
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/home/app:/bin/sh\n\
                      nobody:x:65534:65534:nobody:/:/bin/false\n";
const GROUP: &str = "root:x:0:\napp:x:1000:\nextra:x:2000:app\nnogroup:x:65534:\n";

/// How a layer is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// A plain tar archive.
    Tar,
    /// Compressed with gzip.
    Gzip,
}

/// The files of an image, made once and shared by images that differ in their config.
#[derive(Debug, Clone)]
pub struct Layer {
    diff_id: String,
    media_type: &'static str,
    blob: Blob,
}

/// Content and its digest.
#[derive(Debug, Clone)]
pub struct Blob {
    /// `sha256:<hex>`.
    pub digest: String,
    /// The bytes.
    pub bytes: Arc<[u8]>,
}

/// What a layer has at a path.
#[derive(Debug, Clone)]
pub enum Entry {
    /// A directory that everybody may read.
    Directory,
    /// A copy of a program of this machine.
    Program(PathBuf),
    /// The same, which whoever starts it runs as its owner.
    SetuidProgram(PathBuf),
    /// A text.
    Text(String),
    /// A text of a user and a group.
    TextOf(u64, u64, String),
    /// Any content.
    Bytes(Arc<[u8]>),
    /// A symbolic link.
    Link(String),
}

/// An image.
#[derive(Debug, Clone)]
pub struct Image {
    /// Its config.
    pub config: Blob,
    /// Its layers, the lowest first.
    pub layers: Vec<Blob>,
    /// Its manifest.
    pub manifest: Blob,
}

impl Image {
    /// The media type of the manifest.
    pub const MANIFEST_TYPE: &'static str = "application/vnd.oci.image.manifest.v1+json";

    /// An image of `layer`, whose `config` section (`User`, `Entrypoint`, `Env`, …) is as given.
    #[must_use]
    pub fn new(layer: &Layer, config: &Value) -> Self {
        Self::of(&[layer], config)
    }

    /// An image of several layers, the lowest first.
    #[must_use]
    pub fn of(layers: &[&Layer], config: &Value) -> Self {
        let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.diff_id.as_str()).collect();
        let config = Blob::new(
            json!({
                "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
                "os": "linux",
                "config": config,
                "rootfs": { "type": "layers", "diff_ids": diff_ids },
            })
            .to_string()
            .into_bytes(),
        );
        let described: Vec<Value> =
            layers.iter().map(|layer| layer.blob.descriptor(layer.media_type)).collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": Self::MANIFEST_TYPE,
            "config": config.descriptor("application/vnd.oci.image.config.v1+json"),
            "layers": described,
        });
        let manifest = Blob::new(manifest.to_string().into_bytes());
        Self { config, layers: layers.iter().map(|layer| layer.blob.clone()).collect(), manifest }
    }
}

impl Layer {
    /// The same content, of which the image is to say that it is that of another.
    #[must_use]
    pub fn claiming(self, other: &Self) -> Self {
        Self { diff_id: other.diff_id.clone(), ..self }
    }

    /// Busybox, its applets as links, accounts and a directory for everybody.
    ///
    /// # Errors
    /// Busybox is not installed.
    pub fn busybox(packing: Packing) -> Result<Self> {
        Self::busybox_with(packing, "")
    }

    /// The same with a file `/etc/issue`, which makes it a layer of its own.
    ///
    /// # Errors
    /// Busybox is not installed.
    pub fn busybox_with(packing: Packing, issue: &str) -> Result<Self> {
        Self::packed(busybox_tar(issue)?, packing)
    }

    /// Files at paths without a leading slash, directories before what is in them, in a plain archive.
    ///
    /// # Errors
    /// A program cannot be read.
    pub fn of(files: &[(String, Entry)]) -> Result<Self> {
        let mut tar = Builder::new(Vec::new());
        for (path, entry) in files {
            let kind = |kind, mode, size: usize| header(kind, mode, size as u64);
            match entry {
                Entry::Directory => tar.append_data(&mut kind(EntryType::Directory, 0o755, 0), path, &[][..]),
                Entry::Program(program) | Entry::SetuidProgram(program) => {
                    let mode = if matches!(entry, Entry::Program(_)) { 0o755 } else { 0o4755 };
                    let content = fs::read(program).with_context(|| format!("read {}", program.display()))?;
                    let mut header = kind(EntryType::Regular, mode, content.len());
                    tar.append_data(&mut header, path, content.as_slice())
                }
                Entry::Text(text) => {
                    tar.append_data(&mut kind(EntryType::Regular, 0o644, text.len()), path, text.as_bytes())
                }
                Entry::TextOf(user, group, text) => {
                    let mut header = kind(EntryType::Regular, 0o640, text.len());
                    header.set_uid(*user);
                    header.set_gid(*group);
                    header.set_cksum();
                    tar.append_data(&mut header, path, text.as_bytes())
                }
                Entry::Bytes(bytes) => {
                    tar.append_data(&mut kind(EntryType::Regular, 0o644, bytes.len()), path, &bytes[..])
                }
                Entry::Link(target) => tar.append_link(&mut kind(EntryType::Symlink, 0o777, 0), path, target),
            }
            .with_context(|| format!("add {path}"))?;
        }
        Self::packed(tar.into_inner()?, Packing::Tar)
    }

    /// Files of zeros in a directory `zeros`, called by their numbers: large on the node, and small on the way to it.
    ///
    /// # Errors
    /// What computes digests does not run.
    pub fn of_zeros(files: u64, mebibytes: u64) -> Result<Self> {
        let mut sum = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let sum = sum.as_mut().map_err(|error| anyhow!("run sha256sum: {error}"))?;
        let mut plain = sum.stdin.take().context("no input of sha256sum")?;
        let packed = |part: &[u8]| -> Result<Vec<u8>> {
            let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(part)?;
            Ok(gzip.finish()?)
        };
        let mebibyte = vec![0; 1 << 20];
        let zeros = packed(&mebibyte)?;
        // What was packed part by part is unpacked as a whole (RFC 1952, section 2.2).
        let mut bytes = Vec::new();
        for number in 0..files {
            let mut header = header(EntryType::Regular, 0o644, mebibytes << 20);
            header.set_path(format!("zeros/{number}"))?;
            header.set_cksum();
            plain.write_all(header.as_bytes())?;
            bytes.extend(packed(header.as_bytes())?);
            for _ in 0..mebibytes {
                plain.write_all(&mebibyte)?;
                bytes.extend(&zeros);
            }
        }
        let end = [0; 1024];
        plain.write_all(&end)?;
        bytes.extend(packed(&end)?);
        drop(plain);
        let mut said = String::new();
        sum.stdout.take().context("no output of sha256sum")?.read_to_string(&mut said)?;
        ensure!(sum.wait()?.success(), "sha256sum failed");
        let diff_id = format!("sha256:{}", said.split(' ').next().unwrap_or_default());
        let media_type = "application/vnd.oci.image.layer.v1.tar+gzip";
        Ok(Self { diff_id, media_type, blob: Blob::new(bytes) })
    }

    fn packed(tar: Vec<u8>, packing: Packing) -> Result<Self> {
        let diff_id = digest(&tar);
        let (media_type, bytes) = match packing {
            Packing::Tar => ("application/vnd.oci.image.layer.v1.tar", tar),
            Packing::Gzip => {
                let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::fast());
                gzip.write_all(&tar)?;
                ("application/vnd.oci.image.layer.v1.tar+gzip", gzip.finish()?)
            }
        };
        Ok(Self { diff_id, media_type, blob: Blob::new(bytes) })
    }
}

impl Blob {
    fn new(bytes: Vec<u8>) -> Self {
        Self { digest: digest(&bytes), bytes: bytes.into() }
    }

    pub(crate) fn descriptor(&self, media_type: &str) -> Value {
        json!({ "mediaType": media_type, "digest": self.digest, "size": self.bytes.len() })
    }
}

/// Lowercase hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

fn busybox_tar(issue: &str) -> Result<Vec<u8>> {
    let program = fs::read(BUSYBOX).with_context(|| format!("read {BUSYBOX} (package busybox-static)"))?;
    let list = Command::new(BUSYBOX).arg("--list").output().context("start busybox")?;
    let applets = String::from_utf8(list.stdout)?;

    let mut tar = Builder::new(Vec::new());
    for (dir, mode) in [("bin", 0o755), ("etc", 0o755), ("home/app", 0o755), ("root", 0o700), ("tmp", 0o1777)]
    {
        tar.append_data(&mut header(EntryType::Directory, mode, 0), dir, &[][..])?;
    }
    for (path, mode, content) in [
        ("bin/busybox", 0o755, program.as_slice()),
        ("etc/passwd", 0o644, PASSWD.as_bytes()),
        ("etc/group", 0o644, GROUP.as_bytes()),
    ] {
        tar.append_data(&mut header(EntryType::Regular, mode, content.len() as u64), path, content)?;
    }
    if !issue.is_empty() {
        tar.append_data(
            &mut header(EntryType::Regular, 0o644, issue.len() as u64),
            "etc/issue",
            issue.as_bytes(),
        )?;
    }
    for applet in applets.lines().filter(|applet| *applet != "busybox") {
        tar.append_link(&mut header(EntryType::Symlink, 0o777, 0), format!("bin/{applet}"), "busybox")?;
    }
    Ok(tar.into_inner()?)
}

/// No times and no owners: the same input gives the same digest.
fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_nibbles_in_order() {
        assert_eq!(hex(&[0x00, 0x9f, 0xa1]), "009fa1");
    }

    #[test]
    fn the_packed_layer_holds_the_same_files() {
        let plain = Layer::busybox(Packing::Tar).unwrap();
        let packed = Layer::busybox(Packing::Gzip).unwrap();
        assert_eq!(plain.diff_id, packed.diff_id);
        assert_eq!(plain.diff_id, plain.blob.digest);
        assert!(packed.blob.bytes.len() < plain.blob.bytes.len());
    }
}
