//! From a shim's start command to its first answer, ours and containerd's own, alternately.
//!
//! Both are called as containerd calls them. The first answer is that to a request for a method that neither has: any
//! answer shows that the server serves.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_integration::components;
use berth_integration::containerd::SOCKET;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde_json::json;

use crate::bare::{Bare, Shim};
use crate::figure::Figure;
use crate::processes;

const WARM_UP: usize = 2;
/// The aim for ours, milliseconds.
const SERVING: f64 = 5.0;
const SECTION: &str = "shim: start command to first answer";
/// A namespace without containers.
const NAMESPACE: &str = "bench";
/// The header of a ttrpc message: length, stream and kind, of PROTOCOL.md of containerd/ttrpc.
const HEADER: usize = 10;
const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;

/// Measures both.
pub(crate) fn measure(runs: usize) -> Result<Vec<Figure>> {
    let bare = Bare::start()?;
    let dir = bare.world.root().join("bundles");
    let programs = [Shim::Ours.path()?, Shim::Stock.path()?];
    let mut taken = [Vec::new(), Vec::new()];
    for round in 0..WARM_UP + runs {
        for shim in Shim::in_turn(round) {
            let id = format!("{shim}-{round}");
            let one = serve(&programs[shim as usize], &dir.join(&id), &id)?;
            if round >= WARM_UP {
                taken[shim as usize].push(one);
            }
        }
    }
    bare.end(&[])?;
    let [ours, stock] = taken;
    let mut figures = Vec::new();
    let [median, high] = Figure::times(SECTION, Shim::Ours.program(), &ours)?;
    figures.extend([median.at_most(SERVING), high]);
    figures.extend(Figure::times(SECTION, Shim::Stock.program(), &stock)?);
    figures.push(Figure::ratio(SECTION, "ours / stock", &ours, &stock)?);
    Ok(figures)
}

fn serve(program: &Path, bundle: &Path, id: &str) -> Result<Duration> {
    fs::create_dir_all(bundle)?;
    let spec = json!({ "ociVersion": "1.1.0", "root": { "path": "rootfs" } });
    fs::write(bundle.join("config.json"), spec.to_string())?;
    // As containerd makes it, and keeps it open for reading.
    let log = bundle.join("log");
    mkfifo(&log, Mode::S_IRWXU)?;
    let _log = File::options().read(true).write(true).open(log)?;
    let begun = Instant::now();
    let said = Command::new(program)
        .args(["-namespace", NAMESPACE, "-address", SOCKET, "-publish-binary"])
        .arg(components::binary("containerd")?)
        .args(["-id", id, "start"])
        .current_dir(bundle)
        .env("TTRPC_ADDRESS", format!("{SOCKET}.ttrpc"))
        .env("GRPC_ADDRESS", SOCKET)
        .env("NAMESPACE", NAMESPACE)
        .env("MAX_SHIM_VERSION", "3")
        // As containerd sets it for shims.
        .env("GOMAXPROCS", "2")
        .stdin(Stdio::null())
        .output()
        .context("start a shim")?;
    let errors = String::from_utf8_lossy(&said.stderr);
    ensure!(said.status.success(), "{} ended with {}: {errors}", program.display(), said.status);
    let socket = socket(&said.stdout)?;
    let mut stream = UnixStream::connect(&socket)?;
    ask(&mut stream).with_context(|| format!("ask {}", program.display()))?;
    let taken = begun.elapsed();

    let name = program.file_name().and_then(OsStr::to_str).context("a program without a name")?;
    kill(Pid::from_raw(i32::try_from(processes::only(name, id)?)?), Signal::SIGKILL)?;
    // Its end shows on the connection, as an end or as a failure.
    drop(stream.read(&mut [0]));
    fs::remove_file(socket)?;
    fs::remove_dir_all(bundle)?;
    Ok(taken)
}

/// The path in what a start command prints: JSON or, since containerd 2.3, a protobuf message. In both the address ends
/// with a byte that is in no path here: a quotation mark or a field's tag.
fn socket(said: &[u8]) -> Result<PathBuf> {
    let text = String::from_utf8_lossy(said);
    let (_, rest) = text.split_once("unix://").with_context(|| format!("no address in {text:?}"))?;
    let path = rest.split(|one: char| one == '"' || one.is_control()).next();
    Ok(path.unwrap_or_default().into())
}

fn ask(stream: &mut UnixStream) -> Result<()> {
    // Fields 1 and 2 of ttrpc's Request: service and method.
    let mut payload = Vec::new();
    for (tag, text) in [(0x0a, "containerd.task.v3.Task"), (0x12, "None")] {
        payload.extend([tag, u8::try_from(text.len())?]);
        payload.extend(text.bytes());
    }
    let mut message = u32::try_from(payload.len())?.to_be_bytes().to_vec();
    message.extend(1_u32.to_be_bytes());
    message.extend([REQUEST, 0]);
    message.extend(payload);
    stream.write_all(&message)?;
    let mut header = [0; HEADER];
    stream.read_exact(&mut header)?;
    let length = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    std::io::copy(&mut stream.take(length.into()), &mut std::io::sink())?;
    ensure!(header[8] == RESPONSE, "the shim answers with a message of kind {}", header[8]);
    Ok(())
}
