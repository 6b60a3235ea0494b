use std::fs::{self, DirBuilder, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

use berth_proto::{Any, runc::Options};
use nix::sys::socket::{Shutdown, shutdown};

use super::socket::make_private;
use super::*;

fn args() -> Args {
    crate::args::parse("-namespace k8s.io -id c1 -address /run/c.sock start".split(' ').map(str::to_owned))
        .unwrap()
}

#[test]
fn bootstrap_parameters_are_told_from_runtime_options() {
    let params = BootstrapParams {
        instance_id: "c1".to_owned(),
        namespace: "k8s.io".to_owned(),
        socket_dir: Some("/run/x/s".to_owned()),
        ..Default::default()
    };
    assert_eq!(Asked::of(&params.encode_to_vec(), &args()).socket_dir, PathBuf::from("/run/x/s"));
    let other = BootstrapParams { instance_id: "c2".to_owned(), ..params };
    assert_eq!(Asked::of(&other.encode_to_vec(), &args()).socket_dir, PathBuf::from(SOCKET_DIR));
    let options = Options { root: "/r".to_owned(), ..Default::default() };
    let any = Any { type_url: "containerd.runc.v1.Options".to_owned(), value: options.encode_to_vec() };
    assert_eq!(Asked::of(&any.encode_to_vec(), &args()).socket_dir, PathBuf::from(SOCKET_DIR));
    assert_eq!(Asked::of(&[], &args()).socket_dir, PathBuf::from(SOCKET_DIR));
    assert_eq!(Asked::of(&[0xff; 3], &args()).socket_dir, PathBuf::from(SOCKET_DIR));
    let told =
        BootstrapParams { instance_id: "c1".to_owned(), containerd_ttrpc_address: "/e".to_owned(), ..other };
    assert_eq!(Asked::of(&told.encode_to_vec(), &args()).events_address.as_deref(), Some("/e"));
}

#[test]
fn the_group_annotation_wins_over_the_sandbox_annotation() {
    let config =
        json!({"annotations": {"io.kubernetes.cri.sandbox-id": "s", "io.containerd.runc.v2.group": "g"}});
    assert_eq!(group(&config).unwrap().as_deref(), Some("g"));
    let one = json!({"annotations": {"io.kubernetes.cri.sandbox-id": "s"}});
    assert_eq!(group(&one).unwrap().as_deref(), Some("s"));
    for none in
        [json!({"annotations": {"io.containerd.runc.v2.group": ""}}), json!({}), json!({"annotations": null})]
    {
        assert_eq!(group(&none).unwrap(), None, "{none}");
    }
    for wrong in
        [json!([]), json!("x"), json!({"annotations": 7}), json!({"annotations": {GROUPS[1]: ["s"]}})]
    {
        assert!(matches!(group(&wrong), Err(StartError::Config { .. })), "{wrong}");
    }
}

#[test]
fn a_container_of_a_sandbox_is_told_from_its_first() {
    for (annotations, sandbox) in [
        (json!({SANDBOX: "s", KIND: "container"}), Some("s")),
        (json!({SANDBOX: "s", KIND: "sandbox"}), None),
        (json!({SANDBOX: "s"}), None),
        (json!({KIND: "container"}), None),
        (json!(null), None),
    ] {
        let config = json!({"annotations": annotations});
        assert_eq!(lives_in(&config), sandbox, "{config}");
    }
}

#[test]
fn socket_paths_differ_by_containerd_namespace_and_group_and_fit() {
    let directory = Path::new(SOCKET_DIR);
    let path = socket_path(directory, "/a", "n", "g").unwrap();
    assert_eq!(path, socket_path(directory, "/a", "n", "g").unwrap());
    for (address, namespace, group) in
        [("/b", "n", "g"), ("/a", "m", "g"), ("/a", "n", "h"), ("/a", "ng", "")]
    {
        assert_ne!(path, socket_path(directory, address, namespace, group).unwrap());
    }
    let long = PathBuf::from(format!("/{}", "d".repeat(80)));
    assert!(matches!(socket_path(&long, "/a", "n", "g"), Err(SocketError::LongPath { .. })));
    let relative = socket_path(Path::new("run/s"), "/a", "n", "g");
    assert!(matches!(relative, Err(SocketError::RelativeDirectory { .. })));
}

#[test]
fn cve_2020_15257_sockets_are_paths_that_only_root_may_open() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let _listener = listen(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let open = directory.path().join("open");
    DirBuilder::new().mode(0o777).create(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    make_private(&open).unwrap();
    assert_eq!(fs::metadata(&open).unwrap().permissions().mode() & 0o022, 0);
}

/// Nobody listens any more. A child that another test has just forked has the socket open a little longer than its owner.
fn end(listener: UnixListener) {
    shutdown(listener.as_raw_fd(), Shutdown::Both).unwrap();
    drop(listener);
}

#[test]
fn a_dead_shims_socket_is_replaced_and_a_living_one_joined() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let Claim::Ours(listener) = claim(&path).unwrap() else { panic!("nobody was there") };
    assert!(matches!(claim(&path).unwrap(), Claim::Joined));
    end(listener);
    assert!(path.exists());
    assert!(matches!(claim(&path).unwrap(), Claim::Ours(_)));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(claim(&path), Err(SocketError::Listen { .. })));
}

#[test]
fn one_of_many_claims_wins() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    for stale in [false, true] {
        assert_eq!(path.exists(), stale, "the socket that the first round left");
        let claims: Vec<Claim> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..16).map(|_| scope.spawn(|| claim(&path).unwrap())).collect();
            all.into_iter().map(|claim| claim.join().unwrap()).collect()
        });
        let ours = claims.into_iter().filter_map(|claim| match claim {
            Claim::Ours(listener) => Some(listener),
            Claim::Joined => None,
        });
        let ours: Vec<_> = ours.collect();
        assert_eq!(ours.len(), 1);
        ours.into_iter().for_each(end);
    }
}

#[test]
fn a_shim_with_a_full_backlog_is_joined_without_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let Claim::Ours(_listener) = claim(&path).unwrap() else { panic!("nobody was there") };
    // More than any backlog holds; connections stay in it after their clients have gone.
    for _ in 0..10_000 {
        assert!(matches!(claim(&path).unwrap(), Claim::Joined));
    }
}
