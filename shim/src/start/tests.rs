use berth_proto::{Any, runc::Options};

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
    assert_eq!(socket_dir(&params.encode_to_vec(), &args()), PathBuf::from("/run/x/s"));
    let other = BootstrapParams { instance_id: "c2".to_owned(), ..params };
    assert_eq!(socket_dir(&other.encode_to_vec(), &args()), PathBuf::from(SOCKET_DIR));
    let options = Options { root: "/r".to_owned(), ..Default::default() };
    let any = Any { type_url: "containerd.runc.v1.Options".to_owned(), value: options.encode_to_vec() };
    assert_eq!(socket_dir(&any.encode_to_vec(), &args()), PathBuf::from(SOCKET_DIR));
    assert_eq!(socket_dir(&[], &args()), PathBuf::from(SOCKET_DIR));
    assert_eq!(socket_dir(&[0xff; 3], &args()), PathBuf::from(SOCKET_DIR));
}

#[test]
fn the_group_annotation_wins_over_the_sandbox_annotation() {
    let config =
        json!({"annotations": {"io.kubernetes.cri.sandbox-id": "s", "io.containerd.runc.v2.group": "g"}});
    assert_eq!(group(&config).as_deref(), Some("g"));
    assert_eq!(group(&json!({"annotations": {"io.kubernetes.cri.sandbox-id": "s"}})).as_deref(), Some("s"));
    assert_eq!(group(&json!({"annotations": {"io.containerd.runc.v2.group": ""}})), None);
    assert_eq!(group(&json!({})), None);
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
    assert!(matches!(socket_path(&long, "/a", "n", "g"), Err(StartError::LongPath { .. })));
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
