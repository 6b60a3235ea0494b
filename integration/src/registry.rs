//! A real registry on loopback.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::components;
use crate::files;
use crate::http;
use crate::image::{Blob, Image, Layer, Packing};
use crate::process::Process;
use crate::wait::Look;

const START_LIMIT: Duration = Duration::from_secs(30);

/// The image of the examples.
pub const EXAMPLE: &str = "localhost:5000/busybox:1";
/// The image of the process that a sandbox of CRI consists of.
pub const PAUSE: &str = "localhost:5000/pause:1";

/// Name and password of the one account that a registry lets in which asks for one.
pub const ACCOUNT: (&str, &str) = ("pirate", "fifteen-men-on-a-chest");
/// The password as htpasswd files have it, by bcrypt.
const HASHED: &str = "$2y$05$abcdefghijklmnopqrstuu52ETcto0MLmtzXBHs0NPFbLlPcw1X5i";

/// What one answers that serves.
const READY: u16 = 200;
/// What one answers that speaks TLS, to somebody who does not.
const NO_TLS: u16 = 400;

/// A running registry. What was pushed stays in its directory when it is stopped.
#[derive(Debug)]
pub struct Registry {
    dir: PathBuf,
    at: SocketAddr,
    process: Process,
}

impl Registry {
    /// The port that the examples' image names.
    pub const PORT: u16 = 5000;

    /// Starts one that keeps its content in `dir`.
    ///
    /// # Errors
    /// The component is missing or the port is taken.
    pub fn start(dir: &Path, port: u16) -> Result<Self> {
        files::make_dir(dir)?;
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        files::write(config_file(dir), settings(dir, at).to_string())?;
        let process = serve(dir, at, READY)?;
        Ok(Self { dir: dir.to_owned(), at, process })
    }

    /// Starts another program with the same content, which speaks TLS and lets nobody in but [`ACCOUNT`].
    ///
    /// # Errors
    /// As of [`Registry::start`].
    pub fn guarded(&self, port: u16, certificate: &Path, key: &Path) -> Result<Process> {
        let dir = self.dir.join(format!("guarded-{port}"));
        files::make_dir(&dir)?;
        let accounts = dir.join("htpasswd");
        let (name, _) = ACCOUNT;
        files::write(&accounts, format!("{name}:{HASHED}\n"))?;
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut settings = settings(&self.dir, at);
        settings["http"]["tls"] = json!({ "certificate": certificate, "key": key });
        settings["auth"] = json!({ "htpasswd": { "realm": "tests", "path": accounts } });
        files::write(config_file(&dir), settings.to_string())?;
        serve(&dir, at, NO_TLS)
    }

    /// Starts one that serves the image of the examples, [`EXAMPLE`], and [`PAUSE`].
    ///
    /// # Errors
    /// As of [`Registry::start`] and [`Registry::push`].
    pub fn with_busybox(dir: &Path) -> Result<Self> {
        let registry = Self::start(dir, Self::PORT)?;
        let layer = Layer::busybox(Packing::Tar)?;
        registry.push("busybox", "1", &Image::new(&layer, &json!({ "Cmd": ["/bin/sh"] })))?;
        registry.push(
            "pause",
            "1",
            &Image::new(&layer, &json!({ "Entrypoint": ["/bin/sleep", "infinity"] })),
        )?;
        Ok(registry)
    }

    /// `host:port`, the first part of the names of its images, of one that listens where the examples' image is.
    #[must_use]
    pub fn host() -> String {
        format!("localhost:{}", Self::PORT)
    }

    /// Puts an image there.
    ///
    /// # Errors
    /// The registry refused.
    pub fn push(&self, repository: &str, tag: &str, image: &Image) -> Result<()> {
        for blob in image.layers.iter().chain([&image.config]) {
            self.push_blob(repository, blob)?;
        }
        self.push_manifest(repository, tag, Image::MANIFEST_TYPE, &image.manifest.bytes)
    }

    /// Puts an index of images there, each for a platform.
    ///
    /// # Errors
    /// The registry refused.
    pub fn push_index(&self, repository: &str, tag: &str, images: &[(&Image, Value)]) -> Result<()> {
        const TYPE: &str = "application/vnd.oci.image.index.v1+json";
        let mut manifests = Vec::new();
        for (image, platform) in images {
            self.push(repository, &image.manifest.digest, image)?;
            let mut described = image.manifest.descriptor(Image::MANIFEST_TYPE);
            described["platform"] = platform.clone();
            manifests.push(described);
        }
        let index = json!({ "schemaVersion": 2, "mediaType": TYPE, "manifests": manifests });
        self.push_manifest(repository, tag, TYPE, index.to_string().as_bytes())
    }

    fn push_manifest(&self, repository: &str, tag: &str, media_type: &str, manifest: &[u8]) -> Result<()> {
        let path = format!("/v2/{repository}/manifests/{tag}");
        let answer = http::request(self.at, "PUT", &path, media_type, manifest)?;
        ensure!(answer.status == 201, "push {repository}:{tag}: {} {}", answer.status, answer.text());
        Ok(())
    }

    /// Whether it has ended by itself.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn ended(&mut self) -> Result<bool> {
        self.process.ended()
    }

    /// Starts it again after it has ended.
    ///
    /// # Errors
    /// As of [`Registry::start`].
    pub fn start_again(&mut self) -> Result<()> {
        self.process = serve(&self.dir, self.at, READY)?;
        Ok(())
    }

    /// Stops it; what gives a registry with the same content again when started.
    ///
    /// # Errors
    /// It did not end.
    pub fn stop(self) -> Result<Stopped> {
        let stopped = Stopped { dir: self.dir, port: self.at.port() };
        self.process.stop()?;
        Ok(stopped)
    }

    /// Distribution spec: a session, then the blob in one request.
    fn push_blob(&self, repository: &str, blob: &Blob) -> Result<()> {
        let begun = http::request(self.at, "POST", &format!("/v2/{repository}/blobs/uploads/"), "", &[])?;
        let location = begun
            .header("location")
            .with_context(|| format!("begin a push to {repository}: {} {}", begun.status, begun.text()))?;
        let path = location.find("/v2/").map_or(location, |start| &location[start..]);
        let separator = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{separator}digest={}", blob.digest);
        let answer = http::request(self.at, "PUT", &path, "application/octet-stream", &blob.bytes)?;
        ensure!(answer.status == 201, "push {}: {} {}", blob.digest, answer.status, answer.text());
        Ok(())
    }
}

fn config_file(dir: &Path) -> PathBuf {
    dir.join("registry.yml")
}

fn settings(dir: &Path, at: SocketAddr) -> Value {
    // JSON is YAML.
    json!({
        "version": "0.1",
        "log": { "level": "warn", "accesslog": { "disabled": true } },
        "storage": { "filesystem": { "rootdirectory": dir.join("data") } },
        "http": { "addr": at.to_string() },
    })
}

/// Starts the program and waits until it answers with a status.
fn serve(dir: &Path, at: SocketAddr, status: u16) -> Result<Process> {
    let mut process = Process::start(
        "registry",
        Command::new(components::binary("registry")?)
            .arg("serve")
            .arg(config_file(dir))
            .env("OTEL_TRACES_EXPORTER", "none"),
        &dir.join("registry.log"),
    )?;
    process.ready(START_LIMIT, || {
        Ok(match http::get(at, "/v2/") {
            Ok(answer) if answer.status == status => Look::Ready(()),
            Ok(answer) => Look::NotYet(format!("status {}", answer.status)),
            Err(failure) => Look::NotYet(format!("{failure:#}")),
        })
    })?;
    Ok(process)
}

/// A registry that was stopped.
#[derive(Debug)]
pub struct Stopped {
    dir: PathBuf,
    port: u16,
}

impl Stopped {
    /// Starts it again.
    ///
    /// # Errors
    /// As of [`Registry::start`].
    pub fn start(&self) -> Result<Registry> {
        Registry::start(&self.dir, self.port)
    }
}
