use std::{path::Path, time::Duration};

use berth_core::pod::gone::RETRY_MIN;
use berth_proto::ttrpc::{Code, Event as Wire, Server, Status};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixListener,
};

use super::*;

fn shims(run_dir: &Path) -> (Shims, SandboxId) {
    std::fs::create_dir(run_dir.join("shim")).unwrap();
    let (events, _ended) = mpsc::channel(1);
    let containerd = run_dir.join("containerd.sock");
    let shims = Shims::new(run_dir.to_str().unwrap(), &containerd, events);
    (shims, SandboxId::of(&berth_core::id::PodUid::new("u"), 0))
}

/// Takes one call as a shim does, and answers it.
async fn answer<T: prost::Message + Default>(
    listener: UnixListener,
    status: Option<Code>,
) -> (String, String, T) {
    let (mut socket, _) = listener.accept().await.unwrap();
    let mut server = Server::default();
    let mut buffer = [0; 4096];
    let (stream, request) = loop {
        if let Some(Wire::Call { stream, request, .. }) = server.poll() {
            break (stream, request);
        }
        let len = socket.read(&mut buffer).await.unwrap();
        assert_ne!(len, 0, "the call was given up");
        server.feed(&buffer[..len]);
    };
    server.respond(stream, status.map_or(Ok(Vec::new()), |code| Err(Status::new(code, "no"))));
    socket.write_all(&server.output().take()).await.unwrap();
    (request.service.clone(), request.method.clone(), T::decode(&*request.payload).unwrap())
}

#[tokio::test]
async fn a_signal_reaches_the_shim_without_containerd() {
    let dir = tempfile::tempdir().unwrap();
    let (shims, sandbox) = shims(dir.path());
    let kill = KillRequest { id: "c1".to_owned(), signal: 15, ..KillRequest::default() };

    let listener = UnixListener::bind(shims.socket(&sandbox)).unwrap();
    let (sent, heard) = tokio::join!(shims.signal(&sandbox, &kill), answer(listener, None));
    sent.unwrap();
    assert_eq!(heard, (TASK_V3.to_owned(), "Kill".to_owned(), kill.clone()));

    std::fs::remove_file(shims.socket(&sandbox)).unwrap();
    let listener = UnixListener::bind(shims.socket(&sandbox)).unwrap();
    let (sent, _) =
        tokio::join!(shims.signal(&sandbox, &kill), answer::<KillRequest>(listener, Some(Code::NotFound)));
    assert!(matches!(sent, Err(CallError::Status(status)) if status.code == Code::NotFound));
}

#[tokio::test]
async fn other_resources_reach_the_shim_without_containerd() {
    let dir = tempfile::tempdir().unwrap();
    let (shims, sandbox) = shims(dir.path());
    let update = UpdateTaskRequest { id: "c1".to_owned(), ..UpdateTaskRequest::default() };
    let listener = UnixListener::bind(shims.socket(&sandbox)).unwrap();
    let (sent, heard) = tokio::join!(shims.update(&sandbox, &update), answer(listener, None));
    sent.unwrap();
    assert_eq!(heard, (TASK_V3.to_owned(), "Update".to_owned(), update));
}

#[tokio::test]
async fn a_shim_that_has_gone_is_told_from_one_that_is_silent() {
    let dir = tempfile::tempdir().unwrap();
    let (shims, sandbox) = shims(dir.path());
    let kill = KillRequest::default();
    assert!(matches!(shims.signal(&sandbox, &kill).await, Err(CallError::Connect { .. })));
    let look = shims.look(&sandbox).await;
    assert!(matches!(look, ShimLook::Gone(_)) && !look.is_silent(), "{look:?}");
    assert_eq!(shims.task(&sandbox, &ContainerId::from_known("c1")).await, None);

    // It listens, as one that was stopped still does, and never answers.
    let _listener = UnixListener::bind(shims.socket(&sandbox)).unwrap();
    let waited = tokio::time::timeout(Duration::from_millis(50), shims.signal(&sandbox, &kill)).await;
    assert!(waited.is_err(), "an answer from nobody");
}

/// A copy of the shell under the shim's name stands for a shim.
#[tokio::test]
async fn a_shim_whose_socket_was_removed_is_not_gone_while_it_lives() {
    let dir = tempfile::tempdir().unwrap();
    let (shims, sandbox) = shims(dir.path());
    let program = dir.path().join("containerd-shim-berth-v1");
    // By another process: a program that this one has open for writing cannot be run.
    let copied = std::process::Command::new("cp").args(["/bin/sh".as_ref(), program.as_path()]).status();
    assert!(copied.unwrap().success());
    let containerd = dir.path().join("containerd.sock");
    let mut shim = std::process::Command::new(&program)
        .args([
            "-c",
            "read line",
            "shim",
            "-id",
            sandbox.as_str(),
            "-address",
            containerd.to_str().unwrap(),
            "serve",
        ])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    assert!(matches!(shims.look(&sandbox).await, ShimLook::Silent));

    let (follower, mut heard) = follower(&shims, &sandbox);
    let follower = tokio::spawn(follower.run());
    // Three refusals take far less, and would end it.
    let lost = tokio::time::timeout(RETRY_MIN * 50, heard.recv()).await;
    assert!(lost.is_err(), "{lost:?}");
    shim.kill().unwrap();
    shim.wait().unwrap();
    assert!(matches!(shims.look(&sandbox).await, ShimLook::Gone(_)));
    let Some(Event::Sandbox { report, .. }) = heard.recv().await else { panic!("no report") };
    assert!(matches!(report, SandboxReport::Lost { .. }), "{report:?}");
    follower.await.unwrap();
}

/// Far longer than a follower takes to give up a shim.
const LIMIT: Duration = Duration::from_secs(30);

/// A follower of that shim, and what it tells.
fn follower(shims: &Shims, sandbox: &SandboxId) -> (Follower, mpsc::Receiver<Event>) {
    let (events, told) = mpsc::channel(16);
    (Follower { meant: shims.meant(sandbox), id: sandbox.clone(), events }, told)
}

/// What a shim that was killed leaves: a socket at which nobody listens.
fn leave_socket(socket: &Path) {
    drop(UnixListener::bind(socket).unwrap());
}

#[tokio::test]
async fn a_shim_is_lost_once_after_three_refusals_in_a_row() {
    let dir = tempfile::tempdir().unwrap();
    let (shims, sandbox) = shims(dir.path());
    leave_socket(&shims.socket(&sandbox));
    let (follower, mut told) = follower(&shims, &sandbox);
    let began = tokio::time::Instant::now();
    tokio::time::timeout(LIMIT, follower.run()).await.expect("given up");
    assert!(began.elapsed() >= RETRY_MIN * 3, "given up before the third refusal");
    let event = told.recv().await;
    assert!(
        matches!(&event, Some(Event::Sandbox { id, report: SandboxReport::Lost { .. } }) if *id == sandbox),
        "{event:?}"
    );
    assert_eq!(told.recv().await, None);
}

/// It is there and breaks off every connection.
#[tokio::test]
async fn a_shim_that_accepts_is_not_lost_however_often_the_connection_is() {
    let dir = tempfile::tempdir().unwrap();
    let (shims, sandbox) = shims(dir.path());
    let listener = UnixListener::bind(shims.socket(&sandbox)).unwrap();
    let (follower, mut told) = follower(&shims, &sandbox);
    let mut follower = tokio::spawn(follower.run());
    for connection in 0..6 {
        tokio::select! {
            accepted = listener.accept() => drop(accepted.unwrap()),
            ended = &mut follower => panic!("given up after {connection} connections: {ended:?}"),
        }
    }
    assert!(told.try_recv().is_err(), "an event of a shim that said nothing");
    drop(listener);
    tokio::time::timeout(LIMIT, follower).await.expect("given up").unwrap();
    let event = told.recv().await;
    assert!(matches!(event, Some(Event::Sandbox { report: SandboxReport::Lost { .. }, .. })), "{event:?}");
    assert_eq!(told.recv().await, None);
}

/// Errors that say nothing of the shim: here the way to its socket leads in a circle.
#[tokio::test]
async fn what_keeps_the_agent_from_asking_is_no_loss() {
    let dir = tempfile::tempdir().unwrap();
    let (shims, sandbox) = shims(dir.path());
    let socket = shims.socket(&sandbox);
    std::os::unix::fs::symlink(&socket, &socket).unwrap();
    let look = shims.look(&sandbox).await;
    assert!(matches!(look, ShimLook::NotAsked(_)) && look.is_silent(), "{look:?}");
    let (follower, mut told) = follower(&shims, &sandbox);
    // Six tries, of which the third would be the last.
    let ended = tokio::time::timeout(RETRY_MIN * 40, follower.run()).await;
    assert!(ended.is_err() && told.try_recv().is_err(), "the shim was given up");
}

#[tokio::test]
async fn a_shim_that_never_answers_is_silent_and_not_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (shims, sandbox) = shims(dir.path());
    let _listener = UnixListener::bind(shims.socket(&sandbox)).unwrap();
    let look = shims.look(&sandbox).await;
    assert!(matches!(look, ShimLook::Silent) && look.is_silent(), "{look:?}");
    assert_eq!(look.task("c1"), ObservedTask::Unknown);
}

/// One that was killed before its start, as when containerd undoes a creation whose client has gone, is the end of no run.
#[test]
fn an_end_before_a_start_is_no_end_of_a_run() {
    let stopped = |started_at| Task {
        status: TaskStatus::Stopped.into(),
        started_at,
        exit: Some(berth_proto::shim::Exit { code: 137, exited_at: 2_000_000_000, oom_kills: 0 }),
        ..Task::default()
    };
    assert_eq!(observed_task(&stopped(0)), ObservedTask::Created);
    let ObservedTask::Exited(exit) = observed_task(&stopped(1_000_000_000)) else { panic!("it ran") };
    assert_eq!((exit.code, exit.started_at), (137, clock::wall(1_000_000_000)));
    let unsaid = Task { exit: None, ..stopped(1_000_000_000) };
    assert_eq!(observed_task(&unsaid), ObservedTask::Unknown);
}
