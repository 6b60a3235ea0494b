//! A registry that sends those who pull from it to a host of another, which asks them for an account.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::ROOT_DIR;
use berth_integration::files;
use berth_integration::image::{Image, Layer, Packing};
use berth_integration::node::Node;
use berth_integration::registry::ACCOUNT;
use serde_json::{Value, json};

use crate::canary::Canary;
use crate::images::{of_image, waits};
use crate::suite::{Test, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![test("strangers::cve_2020_15157_an_account_is_told_to_no_host_that_a_registry_points_to", elsewhere)]
}

const REGISTRY: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Another host by its name, which is what counts for whoever follows a redirect.
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const UNAUTHORIZED: &str = "401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"here\"\r\n";

/// What a server was asked, head by head.
type Heads = Arc<Mutex<Vec<String>>>;

/// Serves by `answer`, which makes status line, headers and body of a head. Its threads end with the test's process.
fn serve(listener: TcpListener, answer: impl Fn(&str) -> (String, Vec<u8>) + Send + Sync + 'static) -> Heads {
    let heads = Heads::default();
    let (kept, answer) = (Arc::clone(&heads), Arc::new(answer));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (kept, answer) = (Arc::clone(&kept), Arc::clone(&answer));
            // A client that goes is no matter.
            thread::spawn(move || drop(one(stream, &kept, answer.as_ref())));
        }
    });
    heads
}

fn one(stream: TcpStream, heads: &Heads, answer: &dyn Fn(&str) -> (String, Vec<u8>)) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut head = String::new();
    while reader.read_line(&mut head)? > 2 {}
    heads.lock().unwrap_or_else(PoisonError::into_inner).push(head.clone());
    let (status, body) = answer(&head);
    let mut stream = stream;
    write!(stream, "HTTP/1.1 {status}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    if head.starts_with("GET ") { stream.write_all(&body) } else { Ok(()) }
}

fn has_account(head: &str) -> bool {
    head.to_ascii_lowercase().contains("\r\nauthorization:")
}

/// The images of a registry: of `redirected` it sends the layer on, of `foreign` the manifest says that the layer is elsewhere.
fn registry(image: Image, stranger: SocketAddr) -> Result<impl Fn(&str) -> (String, Vec<u8>)> {
    let layer = image.layers.first().context("a layer")?.digest.clone();
    let mut foreign: Value = serde_json::from_slice(&image.manifest.bytes)?;
    foreign["layers"][0]["urls"] = json!([format!("http://{stranger}/foreign")]);
    let foreign = foreign.to_string().into_bytes();
    Ok(move |head: &str| {
        if !has_account(head) {
            return (UNAUTHORIZED.to_owned(), Vec::new());
        }
        let path = head.split(' ').nth(1).unwrap_or_default();
        let of_type = |of: &str, body: &[u8]| (format!("200 OK\r\nContent-Type: {of}\r\n"), body.to_vec());
        match path.split('?').next().unwrap_or_default() {
            "/v2/" => of_type("application/json", b"{}"),
            path if path.starts_with("/v2/redirected/manifests/") => {
                of_type(Image::MANIFEST_TYPE, &image.manifest.bytes)
            }
            path if path.starts_with("/v2/foreign/manifests/") => of_type(Image::MANIFEST_TYPE, &foreign),
            path if path.ends_with(&image.config.digest) => {
                of_type("application/octet-stream", &image.config.bytes)
            }
            path if path.ends_with(&layer) => {
                let to = format!("307 Temporary Redirect\r\nLocation: http://{stranger}/redirected\r\n");
                (to, Vec::new())
            }
            _ => ("404 Not Found\r\n".to_owned(), Vec::new()),
        }
    })
}

/// Source: GHSA-742w-89gc-8m9c; a kubelet's account is told to its registry alone.
fn elsewhere() -> Result<()> {
    let node = Node::start()?;
    let [ours, others] = [REGISTRY, STRANGER].map(|host| TcpListener::bind((host, 0)));
    let (ours, others) = (ours?, others?);
    let (host, stranger) = (ours.local_addr()?.to_string(), others.local_addr()?);
    // Of another content than the image of the examples, which is there.
    let layer = Layer::busybox_with(Packing::Gzip, "of strangers\n")?;
    let image = Image::new(&layer, &json!({ "Cmd": ["/bin/sh"] }));
    let asked = serve(ours, registry(image, stranger)?);
    let told = serve(others, |_| (UNAUTHORIZED.to_owned(), Vec::new()));
    let auth = json!({ &host: { "username": ACCOUNT.0, "password": ACCOUNT.1 } });
    files::write(Path::new(ROOT_DIR).join("config.json"), json!({ "auths": auth }).to_string())?;
    node.containerd.add_registry(&host, &format!("http://{host}"))?;

    for name in ["redirected", "foreign"] {
        node.apply(name, &of_image(name, &format!("{host}/{name}:1"), "IfNotPresent", json!({})))?;
        waits(&node, name, &["ErrImagePull", "ImagePullBackOff"])?;
    }
    let heads = |of: &Heads| of.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (asked, told) = (heads(&asked), heads(&told));
    ensure!(asked.iter().any(|head| has_account(head)), "the registry itself was told none: {asked:?}");
    let account = Canary::of(ACCOUNT.1)?;
    for name in ["redirected", "foreign"] {
        let begins = format!("GET /{name} ");
        let heads: Vec<_> = told.iter().filter(|head| head.starts_with(&begins)).collect();
        ensure!(!heads.is_empty(), "{name}: the stranger was not asked: {told:?}");
        for head in heads {
            ensure!(!has_account(head) && !account.is_in(head.as_bytes()), "{name}: {head}");
        }
    }
    node.clear()?;
    node.end()
}
