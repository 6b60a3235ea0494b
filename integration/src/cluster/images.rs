//! The images that kubeadm asks for, made of the components: one layer with every program of Kubernetes and etcd, one of
//! iptables for kube-proxy, and CoreDNS. A containerd that has them asks no registry.
//!
//! They are kept as one archive in `target/stored`, which appears only when it is whole. A stamp beside it holds what it was
//! made of.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, Header};

use super::VERSION;
use crate::components;
use crate::containerd::ctr;
use crate::files;
use crate::image::{Blob, Entry, Image, Layer, Packing, hex, machine};
use crate::node::system;
use crate::registry::{EXAMPLE, PAUSE};

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where the programs are in their image.
const PROGRAMS: &str = "usr/local/bin";
/// The image of the network that is installed by a DaemonSet: the plugins, kubectl and a shell.
pub(super) const NETWORK: &str = "localhost:5000/network:1";
/// The same by another name, as the next version of it.
pub(super) const NEXT_NETWORK: &str = "localhost:5000/network:2";
/// The plugins of it.
const PLUGINS: [&str; 4] = ["bridge", "host-local", "loopback", "portmap"];
/// What kube-proxy calls, all of them one program.
const IPTABLES: [&str; 6] =
    ["iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"];

/// Gives the images to the containerd of the lab; the archive is made when there is none, or another one.
///
/// # Errors
/// A component is missing, or containerd refused.
pub fn import() -> Result<()> {
    let archive = archive()?;
    let archive = archive.to_str().context("the archive has no name in UTF-8")?;
    ctr(&["images", "import", "--digests=false", archive]).map(drop)
}

fn archive() -> Result<PathBuf> {
    let dir = components::workspace().join("target/stored");
    files::make_dir(&dir)?;
    let lock = files::create(dir.join("cluster.lock"))?;
    let _one_builder = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
    let (archive, stamp) = (dir.join("cluster.tar"), dir.join("cluster.stamp"));
    let recipe = recipe()?;
    if archive.is_file() && fs::read_to_string(&stamp).is_ok_and(|old| old == recipe) {
        return Ok(archive);
    }
    let part = dir.join("cluster.part");
    write(&part, &images()?)?;
    fs::rename(&part, &archive).with_context(|| format!("keep {}", archive.display()))?;
    files::write(&stamp, recipe)?;
    Ok(archive)
}

fn recipe() -> Result<String> {
    let mut hash = Sha256::new();
    for component in ["kubernetes", "coredns", "cni"] {
        hash.update(components::recipe_of(component)?);
    }
    hash.update(include_str!("images.rs"));
    Ok(hex(&hash.finalize()))
}

/// Every image by the reference that kubeadm asks for, and those of the tests.
fn images() -> Result<BTreeMap<String, Image>> {
    let programs = Layer::of(&programs()?)?;
    let (base, dns) = (Layer::busybox(Packing::Tar)?, Layer::of(&coredns()?)?);
    let env = json!({ "Env": [PATH] });
    let asleep = json!({ "Env": [PATH], "Entrypoint": ["/bin/sleep", "infinity"] });
    let of_pause = Image::new(&base, &asleep);
    let kubeadm = components::binary("kubeadm")?.display().to_string();
    let asked_for = system(&kubeadm, &["config", "images", "list", "--kubernetes-version", VERSION])?;
    let mut images = BTreeMap::new();
    for reference in asked_for.lines() {
        let name = reference.rsplit('/').next().and_then(|name| name.split(':').next()).unwrap_or_default();
        let image = match name {
            "coredns" => Image::new(&dns, &json!({ "Env": [PATH], "Entrypoint": ["/coredns"] })),
            "kube-proxy" => Image::of(&[&programs, &Layer::of(&iptables()?)?], &env),
            "pause" => of_pause.clone(),
            "etcd" | "kube-apiserver" | "kube-controller-manager" | "kube-scheduler" => {
                Image::of(&[&programs], &env)
            }
            _ => bail!("kubeadm asks for an image that nobody makes: {reference}"),
        };
        images.insert(reference.to_owned(), image);
    }
    let network = Image::of(&[&programs, &base, &Layer::of(&plugins()?)?], &env);
    images.extend([NETWORK, NEXT_NETWORK].map(|name| (name.to_owned(), network.clone())));
    images.insert(PAUSE.to_owned(), of_pause);
    images.insert(EXAMPLE.to_owned(), Image::new(&base, &json!({ "Cmd": ["/bin/sh"] })));
    Ok(images)
}

/// The program of Kubernetes by each of its names.
fn programs() -> Result<Vec<(String, Entry)>> {
    let program = components::binary("kubernetes")?;
    let mut files = vec![
        ("tmp".to_owned(), Entry::Directory),
        (format!("{PROGRAMS}/kubernetes"), Entry::Program(program)),
    ];
    let names = components::NAMES_OF_KUBERNETES;
    files.extend(names.map(|name| (format!("{PROGRAMS}/{name}"), Entry::Link("kubernetes".to_owned()))));
    Ok(files)
}

/// Below `plugins`.
fn plugins() -> Result<Vec<(String, Entry)>> {
    let of = |name: &str| Ok((format!("plugins/{name}"), Entry::Program(components::binary(name)?)));
    PLUGINS.into_iter().map(of).collect()
}

fn coredns() -> Result<Vec<(String, Entry)>> {
    Ok(vec![("coredns".to_owned(), Entry::Program(components::binary("coredns")?))])
}

/// The machine's iptables with its libraries and extensions, at their places.
fn iptables() -> Result<Vec<(String, Entry)>> {
    let program = fs::canonicalize("/usr/sbin/iptables-nft").context("no iptables: run scripts/setup")?;
    let mut taken = machine::libraries([&program])?;
    let extensions = taken.iter().filter_map(|library| Some(library.parent()?.join("xtables")));
    let extensions = extensions.clone().find(|dir| dir.is_dir()).context("iptables has no extensions")?;
    let extensions = files::list(&extensions)?;
    // Some need more than the program does.
    taken.extend(machine::libraries(&extensions)?);
    taken.extend(extensions);
    let mut files = vec![("usr/sbin/iptables".to_owned(), Entry::Program(program))];
    files.extend(machine::at_their_places(&taken)?);
    let others = IPTABLES.iter().skip(1);
    files.extend(others.map(|name| (format!("usr/sbin/{name}"), Entry::Link("iptables".to_owned()))));
    Ok(files)
}

/// An image layout of the OCI, in which each manifest has the name that containerd is to give it.
fn write(to: &Path, images: &BTreeMap<String, Image>) -> Result<()> {
    let mut tar = Builder::new(files::create(to)?);
    let mut add = |path: &str, bytes: &[u8]| {
        let mut header = Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, path, bytes).with_context(|| format!("add {path}"))
    };
    add("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    let mut written = BTreeSet::new();
    let mut manifests = Vec::new();
    for (name, image) in images {
        let blobs: Vec<&Blob> = image.layers.iter().chain([&image.config, &image.manifest]).collect();
        for blob in blobs {
            if written.insert(blob.digest.clone()) {
                add(&format!("blobs/{}", blob.digest.replace(':', "/")), &blob.bytes)?;
            }
        }
        let mut described = image.manifest.descriptor(Image::MANIFEST_TYPE);
        described["annotations"] = json!({ "io.containerd.image.name": name });
        manifests.push(described);
    }
    let index: Value = json!({ "schemaVersion": 2, "manifests": manifests });
    add("index.json", index.to_string().as_bytes())?;
    tar.into_inner().context("end the archive").map(drop)
}
