//! The images of the suite, made here and served by a registry under the names that the suite has for them.
//!
//! They have what specs of a node's conformance use of the originals: busybox, the suite's own programs, and bash, curl, hostname,
//! ipcs and netcat of this machine. Specs compare what busybox's shell says, at `/bin/sh`, and have a shell pass on variables whose names are none of a
//! shell's, which Debian's busybox does not: `sh`, as it is found by its name, is bash.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use berth_integration::authority::{Authority, Use};
use berth_integration::components::{self, E2E};
use berth_integration::files;
use berth_integration::image::{Entry, Image, Layer, Packing, machine};
use berth_integration::process::printed;
use berth_integration::registry::Registry;
use serde_json::{Value, json};

/// The first part of the names of the suite's images. Those of other hosts are not there on purpose.
pub(crate) const HOST: &str = "registry.k8s.io";
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Programs of this machine that specs call in a container, by the packages that `scripts/setup conformance` installs.
const TOOLS: [(&str, &str); 5] = [
    ("bash", "/usr/bin/bash"),
    ("curl", "/usr/bin/curl"),
    ("hostname", "/usr/bin/hostname"),
    ("ipcs", "/usr/bin/ipcs"),
    ("nc", "/usr/bin/nc.openbsd"),
];
/// Links to them, some in the place of busybox's own, whose shell takes what busybox has before what is linked.
const LINKS: [(&str, &str); 4] = [
    ("usr/bin/sh", "/usr/bin/bash"),
    ("bin/bash", "/usr/bin/bash"),
    ("bin/ipcs", "/usr/bin/ipcs"),
    ("bin/nc", "/usr/bin/nc"),
];
/// Where the suite's own registry, a pod, has its images.
const OWN_REGISTRY: &str = "var/registry";
/// The accounts that specs of supplemental groups know.
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/home/user:/bin/sh\n\
                      nobody:x:65534:65534:nobody:/:/bin/false\n";
const GROUP: &str = "root:x:0:\nuser-defined-in-image:x:1000:\n\
                     group-defined-in-image:x:50000:user-defined-in-image\nnogroup:x:65534:\n";
/// What the spec of volumes that are images reads of one.
const KITTEN: [(&str, &str); 2] =
    [("data.json", "{\n  \"image\": \"kitten.jpg\"\n}\n"), ("etc/os-release", "NAME=\"Alpine Linux\"\n")];
/// A process that ends when it is told to. As process 1 it has to say so.
const PAUSE: &str = "trap 'exit 0' TERM INT; while :; do sleep 1000000 & wait $!; done";

/// Puts every image there that the suite names and that is made here; `dir` is for what it takes to make them.
pub(crate) fn push(registry: &Registry, dir: &Path) -> Result<()> {
    let made = Made::new(dir)?;
    let suite = components::binary_in(E2E, "e2e.test")?;
    let names = printed(Command::new(suite).arg("--list-images"))?;
    for name in names.lines().filter_map(|name| name.trim().strip_prefix(HOST)?.strip_prefix('/')) {
        let (repository, tag) = name.rsplit_once(':').with_context(|| format!("image {name} has no tag"))?;
        let last = repository.rsplit('/').next().unwrap_or_default();
        if let Some(image) = made.image(last) {
            registry.push(repository, tag, &image)?;
        }
    }
    Ok(())
}

/// The layers.
struct Made {
    base: Layer,
    tools: Layer,
    agnhost: Layer,
    kitten: Layer,
    nonewprivs: Layer,
}

impl Made {
    fn new(dir: &Path) -> Result<Self> {
        let base = Layer::busybox(Packing::Tar)?;
        let tools = TOOLS.map(|(name, path)| (name, Path::new(path)));
        let mut tools = machine::programs(&tools).context("run scripts/setup conformance")?;
        tools.extend(LINKS.map(|(path, to)| (path.to_owned(), Entry::Link(to.to_owned()))));
        let tools = Layer::of(&tools)?;
        let agnhost = Layer::of(&agnhost(&pause(&base), dir)?)?;
        let kitten = KITTEN.map(|(path, text)| (path.to_owned(), Entry::Text(text.to_owned())));
        let kitten = Layer::of(&kitten)?;
        let program = components::binary_in(E2E, "nonewprivs")?;
        let nonewprivs = Layer::of(&[("usr/local/bin/nnp".to_owned(), Entry::SetuidProgram(program))])?;
        Ok(Self { base, tools, agnhost, kitten, nonewprivs })
    }

    /// By the last part of its name; others are made when a spec needs them.
    fn image(&self, name: &str) -> Option<Image> {
        let of = |layers: &[&Layer], config: Value| Some(Image::of(layers, &config));
        let starts = |args: &[&str]| json!({ "Env": [PATH], "Entrypoint": ["/agnhost"], "Cmd": args });
        let (shell, suite) = ([&self.base, &self.tools], [&self.base, &self.tools, &self.agnhost]);
        let sh = json!({ "Env": [PATH], "Cmd": ["sh"] });
        match name {
            "agnhost" => of(&suite, starts(&["pause"])),
            "kitten" => of(&[&suite[..], &[&self.kitten]].concat(), starts(&["test-webserver"])),
            "nautilus" => of(&suite, starts(&["test-webserver"])),
            "nginx" => of(&suite, starts(&["netexec", "--http-port=80"])),
            "busybox" | "glibc-dns-testing" | "ipc-utils" => of(&shell, sh),
            "nonewprivs" => of(&[&self.base, &self.nonewprivs], json!({ "Env": [PATH], "Cmd": ["nnp"] })),
            "nonroot" => of(&shell, json!({ "Env": [PATH], "Cmd": ["sh"], "User": "1234" })),
            "pause" => Some(pause(&self.base)),
            _ => None,
        }
    }
}

fn pause(base: &Layer) -> Image {
    Image::new(base, &json!({ "Env": [PATH], "Entrypoint": ["/bin/sh", "-c", PAUSE], "User": "65535:65535" }))
}

/// The program by both of its names, accounts, a certificate for servers, and what its registry serves.
fn agnhost(served: &Image, dir: &Path) -> Result<Vec<(String, Entry)>> {
    let program = components::binary_in(E2E, "agnhost")?;
    let pair = Authority::make(dir)?.sign("localhost", Use::Server(Ipv4Addr::LOCALHOST.into()))?;
    let text = |path: &Path| Ok::<_, anyhow::Error>(Entry::Text(files::read(path)?));
    let mut content = vec![
        ("agnhost".to_owned(), Entry::Program(program)),
        ("agnhost-2".to_owned(), Entry::Link("agnhost".to_owned())),
        // Specs call netcat by it.
        ("bin/sh".to_owned(), Entry::Link("/usr/bin/bash".to_owned())),
        ("etc/passwd".to_owned(), Entry::Text(PASSWD.to_owned())),
        ("etc/group".to_owned(), Entry::Text(GROUP.to_owned())),
        ("localhost.crt".to_owned(), text(&pair.certificate)?),
        ("localhost.key".to_owned(), text(&pair.key)?),
        ("uploads".to_owned(), Entry::Directory),
    ];
    content.extend(in_own_registry("pause", "testing", served)?);
    Ok(content)
}

/// An image as the suite's own registry keeps it: each blob below the first two digits of its digest, and the digest of the manifest by
/// the tag.
fn in_own_registry(name: &str, tag: &str, image: &Image) -> Result<Vec<(String, Entry)>> {
    let home = PathBuf::from(OWN_REGISTRY).join(name);
    let place = |kind: &str, digest: &str| {
        let (algorithm, hash) = digest.split_once(':').context("a digest has no algorithm")?;
        let first = hash.get(..2).context("a digest is short")?;
        let path = home.join(kind).join(algorithm).join(first).join(hash).join("data");
        Ok::<_, anyhow::Error>(path.display().to_string())
    };
    let manifest = &image.manifest;
    let tag = home.join("manifests").join(tag).display().to_string();
    let mut files = vec![
        (tag, Entry::Text(manifest.digest.clone())),
        (place("manifests", &manifest.digest)?, Entry::Bytes(manifest.bytes.clone())),
    ];
    for blob in image.layers.iter().chain([&image.config]) {
        files.push((place("blobs", &blob.digest)?, Entry::Bytes(blob.bytes.clone())));
    }
    Ok(files)
}
