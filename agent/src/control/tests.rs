use std::{
    os::{fd::AsRawFd as _, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use berth_core::{config::Paths, id::ContainerId};
use nix::sys::socket::{Shutdown, shutdown};
use oci_spec::runtime::Spec;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::mpsc,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    protocol::{
        ANSWER_MAX, Answer, Envelope, ExecRequest, Frame, FrameError, FrameKind, PIECE_MAX, Request, VERSION,
    },
    *,
};
use crate::{
    runtime::{Shims, Specs},
    view::{Problem, View},
    workers::Workers,
};

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(20);

struct NoContainers;

impl Specs for NoContainers {
    async fn spec(&self, _id: &ContainerId) -> Result<Spec, String> {
        Err("there are none".to_owned())
    }
}

struct World {
    _directory: TempDir,
    socket: PathBuf,
    cancel: CancellationToken,
    view: View,
}

impl World {
    fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let socket = directory.path().join("berth.sock");
        let text = |name: &str| directory.path().join(name).display().to_string();
        let paths = Paths {
            root: text("root"),
            pod_logs: text("logs"),
            container_logs: text("containers"),
            run: text("run"),
            seccomp: text("seccomp"),
        };
        let (view, cancel) = (View::default(), CancellationToken::new());
        let workers = Workers::open(directory.path()).unwrap();
        let (events, _nobody) = mpsc::channel(1);
        let shims = Shims::new(&paths.run, Path::new("/nowhere"), events);
        let service = Service { view: view.clone(), paths, shims, runtime: NoContainers, workers };
        let listener = listen(&socket).unwrap();
        tokio::spawn(serve(listener, Arc::new(service), cancel.clone()));
        Self { _directory: directory, socket, cancel, view }
    }

    async fn ask(&self, request: Request) -> Answer {
        timeout(LONG, Client::connect(&self.socket).await.unwrap().ask(request)).await.unwrap().unwrap()
    }

    /// Sends bytes, says that nothing more comes, and reads what is answered until the end.
    async fn raw(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = UnixStream::connect(&self.socket).await.unwrap();
        let mut answer = Vec::new();
        let talk = async {
            // The server may hang up before it has read everything.
            drop(stream.write_all(bytes).await);
            drop(stream.shutdown().await);
            drop(stream.read_to_end(&mut answer).await);
        };
        timeout(LONG, talk).await.unwrap();
        answer
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes().to_vec();
    bytes.push(kind);
    bytes.extend_from_slice(payload);
    bytes
}

#[tokio::test]
async fn questions_have_answers() {
    let world = World::start();
    let problem = Problem { place: "x.yaml".to_owned(), message: "broken".to_owned() };
    world.view.set_problems(berth_core::spec::Source::File, vec![problem.clone()]);
    let Answer::Pods(overview) = world.ask(Request::Pods).await else { panic!("no overview") };
    assert_eq!((overview.pods, overview.problems), (Vec::new(), vec![problem]));
    let request = Request::Pod { namespace: "default".to_owned(), name: "web".to_owned() };
    let message = "pod `web` is not on this node".to_owned();
    assert_eq!(world.ask(request).await, Answer::NotFound { message });
    let exec = ExecRequest {
        namespace: "default".to_owned(),
        name: "web".to_owned(),
        container: None,
        command: vec!["true".to_owned()],
        tty: false,
        stdin: false,
    };
    let message = "pod `default/web` is not on this node".to_owned();
    assert_eq!(world.ask(Request::Exec(exec)).await, Answer::NotFound { message });
}

#[tokio::test]
async fn garbage_ends_its_own_connection_only() {
    let world = World::start();
    let good = serde_json::to_vec(&Envelope { version: VERSION, request: Request::Pods }).unwrap();
    let other = serde_json::to_vec(&Envelope { version: 99, request: Request::Pods }).unwrap();
    for (bytes, expected) in [
        (Vec::new(), ""),
        (vec![0; 3], "use the connection"),
        (vec![0xff; 64], "take a frame of 4294967295 bytes: more than 65536"),
        (frame(9, b"x"), "take a frame of kind 9: there is no such kind"),
        (frame(0, b"{"), "read a message"),
        (frame(0, b"{\"version\":1,\"request\":{\"ask\":\"reboot\"}}"), "read a message"),
        (frame(0, &other), "this agent speaks version 1 of the protocol, not 99"),
        (frame(1, &good), ""),
        (frame(0, &vec![b'['; PIECE_MAX]), "read a message"),
        (frame(0, &good)[..20].to_vec(), "use the connection"),
    ] {
        let answer = String::from_utf8_lossy(&world.raw(&bytes).await).into_owned();
        if expected.is_empty() {
            assert_eq!(answer, "", "{bytes:?}");
        } else {
            assert!(answer.contains("failed") && answer.contains(expected), "{answer}");
        }
    }
    assert!(matches!(world.ask(Request::Pods).await, Answer::Pods(_)));
}

#[tokio::test]
async fn frames_are_read_as_they_were_written() {
    let (mut one, mut other) = tokio::io::duplex(7);
    let sent = Frame { kind: FrameKind::Stderr, payload: (0..=255).collect() };
    let copy = sent.clone();
    let writer = tokio::spawn(async move { copy.write(&mut one).await });
    assert_eq!(Frame::read(&mut other, ANSWER_MAX).await.unwrap(), Some(sent));
    writer.await.unwrap().unwrap();
    assert_eq!(Frame::read(&mut other, ANSWER_MAX).await.unwrap(), None);
}

#[tokio::test]
async fn a_frame_beyond_the_bound_is_not_read() {
    let bytes = frame(0, &[0; 11]);
    let result = Frame::read(&mut bytes.as_slice(), 10).await;
    assert!(matches!(result, Err(FrameError::TooLarge(11, 10))), "{result:?}");
}

#[tokio::test]
async fn the_socket_is_its_owners_and_only_one_agent_has_it() {
    let world = World::start();
    assert_eq!(std::fs::metadata(&world.socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(listen(&world.socket).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    let file = world.socket.with_extension("txt");
    std::fs::write(&file, "precious").unwrap();
    assert_eq!(listen(&file).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    // What a killed agent left is replaced. Nobody listens any more, also where a child of another test's has the socket for a moment.
    let left = world.socket.with_extension("left");
    let killed = std::os::unix::net::UnixListener::bind(&left).unwrap();
    shutdown(killed.as_raw_fd(), Shutdown::Both).unwrap();
    drop(listen(&left).unwrap());
}

#[tokio::test]
async fn an_agent_that_does_not_run_is_told_with_the_next_step() {
    let error = Client::connect(&PathBuf::from("/nowhere/berth.sock")).await.unwrap_err();
    assert!(error.to_string().contains("start it with `berth run`"), "{error}");
}
