use std::sync::atomic::{AtomicUsize, Ordering};

use berth_core::id::PodUid;
use berth_proto::{
    SHIM_PROTOCOL,
    shim::{StateResponse, shim_service},
    ttrpc::{Event as Wire, Server},
};
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    task::JoinSet,
    time::{Instant, sleep},
};

use super::*;

/// A shim of a version that answers questions for its state, and nothing else.
struct Shim {
    _dir: tempfile::TempDir,
    socket: PathBuf,
    connected: Arc<AtomicUsize>,
    asked: Arc<AtomicUsize>,
    /// Ends all connections.
    serving: JoinSet<()>,
}

impl Shim {
    fn start(version: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("shim.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (connected, asked) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, version, Arc::clone(&connected), Arc::clone(&asked)));
        Self { _dir: dir, socket, connected, asked, serving }
    }

    fn seen(&self) -> (usize, usize) {
        (self.connected.load(Ordering::SeqCst), self.asked.load(Ordering::SeqCst))
    }
}

async fn serve(listener: UnixListener, version: u32, connected: Arc<AtomicUsize>, asked: Arc<AtomicUsize>) {
    let mut all = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        connected.fetch_add(1, Ordering::SeqCst);
        all.spawn(answer(socket, version, Arc::clone(&asked)));
    }
}

async fn answer(mut socket: UnixStream, version: u32, asked: Arc<AtomicUsize>) {
    let (mut server, mut buffer) = (Server::default(), [0; 4096]);
    while let Ok(len @ 1..) = socket.read(&mut buffer).await {
        server.feed(&buffer[..len]);
        while let Some(event) = server.poll() {
            if let Wire::Call { stream, request, .. } = event
                && request.method == shim_service::STATE
            {
                asked.fetch_add(1, Ordering::SeqCst);
                let state = StateResponse { protocol_version: version, ..StateResponse::default() };
                server.respond(stream, Ok(state.encode_to_vec()));
            }
        }
        socket.write_all(&server.output().take()).await.unwrap();
    }
}

fn connections() -> Connections {
    Connections::in_runtime(Handle::current())
}

fn sandbox() -> SandboxId {
    SandboxId::of(&PodUid::new("u"), 0)
}

#[tokio::test]
async fn all_at_once_share_one_connection() {
    let (shim, connections, sandbox) = (Shim::start(SHIM_PROTOCOL), connections(), sandbox());
    let mut asking = JoinSet::new();
    for _ in 0..200 {
        let (connections, sandbox, socket) = (connections.clone(), sandbox.clone(), shim.socket.clone());
        asking.spawn(async move { connections.shared(&sandbox, &socket).await });
    }
    let clients: Vec<ShimClient> = asking.join_all().await.into_iter().map(Option::unwrap).collect();
    assert!(clients.iter().all(|client| client.is_same(&clients[0])));
    assert_eq!(connections.version(&sandbox, &shim.socket).await.unwrap(), SHIM_PROTOCOL);
    assert_eq!(shim.seen(), (1, 1), "connections and questions");
}

#[tokio::test]
async fn an_older_shim_has_none_and_is_asked_once() {
    for version in [0, 3, FLOW_CONTROL - 1] {
        let (shim, connections, sandbox) = (Shim::start(version), connections(), sandbox());
        for _ in 0..3 {
            assert!(connections.shared(&sandbox, &shim.socket).await.is_none());
            assert_eq!(connections.version(&sandbox, &shim.socket).await.unwrap(), version.max(1));
        }
        assert_eq!(shim.seen(), (1, 1));
    }
}

#[tokio::test]
async fn a_lost_one_is_replaced_without_asking_again() {
    let (mut shim, connections, sandbox) = (Shim::start(SHIM_PROTOCOL), connections(), sandbox());
    let first = connections.shared(&sandbox, &shim.socket).await.unwrap();
    shim.serving.shutdown().await;
    drop(first.closed().await);
    std::fs::remove_file(&shim.socket).unwrap();
    // As if its keeper did not know yet.
    connections.lock().get_mut(&sandbox).unwrap().link = Link::Open { client: first.clone(), used: true };
    assert!(connections.take(&sandbox).is_none());
    let replaced = connections.shared(&sandbox, &shim.socket).await;
    assert!(replaced.is_none(), "nobody listens");
    let listener = UnixListener::bind(&shim.socket).unwrap();
    let (connected, asked) = (Arc::clone(&shim.connected), Arc::clone(&shim.asked));
    shim.serving.spawn(serve(listener, SHIM_PROTOCOL, connected, asked));
    let second = connections.shared(&sandbox, &shim.socket).await.unwrap();
    assert!(!second.is_same(&first));
    assert_eq!(shim.seen(), (2, 1));
}

#[tokio::test]
async fn nothing_is_kept_of_one_that_is_not_there() {
    let (connections, sandbox) = (connections(), sandbox());
    assert!(connections.shared(&sandbox, Path::new("/nowhere/shim.sock")).await.is_none());
    connections.version(&sandbox, Path::new("/nowhere/shim.sock")).await.unwrap_err();
    assert!(connections.lock().is_empty());
}

#[tokio::test]
async fn one_is_closed_that_was_not_used_between_two_looks() {
    let (shim, connections, sandbox) = (Shim::start(SHIM_PROTOCOL), connections(), sandbox());
    let client = connections.shared(&sandbox, &shim.socket).await.unwrap();
    let (slots, socket) = (connections.clone(), shim.socket.clone());
    let keeper = Keeper { slots, sandbox: sandbox.clone(), socket, version: None };
    // The keeper's own handle, the slot's, and this one: it is in use.
    assert_eq!(client.handles(), 3);
    assert!(!keeper.is_idle(&client) && !keeper.is_idle(&client));
    let its_own = client.clone();
    drop(client);
    // As if that were the keeper's.
    let used = connections.take(&sandbox).unwrap();
    drop(used);
    assert!(!keeper.is_idle(&its_own), "it was used since the last look");
    connections.forget(&sandbox);
    assert!(keeper.is_idle(&its_own), "nobody can use it any more");
    let again = connections.shared(&sandbox, &shim.socket).await.unwrap();
    assert!(!again.is_same(&its_own), "streams of the forgotten one go on beside it");
}

#[tokio::test(start_paused = true)]
async fn one_that_nobody_uses_is_closed_after_two_looks() {
    let (shim, connections, sandbox) = (Shim::start(SHIM_PROTOCOL), connections(), sandbox());
    let begun = Instant::now();
    let client = connections.shared(&sandbox, &shim.socket).await.unwrap();
    sleep(10 * LOOK_EVERY).await;
    assert!(!client.is_closed() && connections.take(&sandbox).is_some(), "it is in use");
    drop(client);
    let is_open = || matches!(connections.lock()[&sandbox].link, Link::Open { .. });
    while is_open() {
        sleep(LOOK_EVERY / 10).await;
    }
    assert!(begun.elapsed() <= 12 * LOOK_EVERY + LOOK_EVERY / 5, "{:?}", begun.elapsed());
    assert!(connections.shared(&sandbox, &shim.socket).await.is_some());
    assert_eq!(shim.seen(), (2, 1), "connections and questions");
}

/// The thread of the server comes and goes; what it was first to ask for is the agent's.
#[tokio::test]
async fn it_is_kept_in_its_runtime_whoever_asks_first() {
    let (shim, connections, sandbox) = (Shim::start(SHIM_PROTOCOL), connections(), sandbox());
    let (other, of, socket) = (connections.clone(), sandbox.clone(), shim.socket.clone());
    let asking = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(other.shared(&of, &socket)).unwrap()
    });
    while !asking.is_finished() {
        tokio::task::yield_now().await;
    }
    let first = asking.join().unwrap();
    first.state().await.unwrap();
    assert!(connections.shared(&sandbox, &shim.socket).await.unwrap().is_same(&first));
    assert_eq!(shim.seen(), (1, 2));
}

#[tokio::test]
async fn who_asked_first_may_go_before_it_is_there() {
    let (shim, connections, sandbox) = (Shim::start(SHIM_PROTOCOL), connections(), sandbox());
    {
        let mut asking = std::pin::pin!(connections.shared(&sandbox, &shim.socket));
        assert!(futures::future::poll_immediate(&mut asking).await.is_none());
    }
    assert!(connections.shared(&sandbox, &shim.socket).await.is_some());
    assert_eq!(shim.seen(), (1, 1));
}

#[tokio::test]
async fn a_keeper_that_was_ended_is_replaced() {
    let (shim, connections, sandbox) = (Shim::start(SHIM_PROTOCOL), connections(), sandbox());
    let (made, making) = watch::channel(());
    drop(made);
    connections.lock().insert(sandbox.clone(), Slot { version: None, link: Link::Making(making) });
    assert!(connections.shared(&sandbox, &shim.socket).await.is_some());
}
