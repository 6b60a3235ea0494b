//! Volumes, seen from inside and from the node.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{ROOT_DIR, Settings};
use berth_integration::files;
use berth_integration::image::{Image, Layer, Packing};
use berth_integration::node::{Node, POD_LIMIT, PodState};
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use crate::kit::{SOON, events, inside, pod, script, shell, with};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("volumes::what_is_known_of_the_pod", of_the_pod),
        test("volumes::host_path_types", host_path),
        test("volumes::sub_paths", sub_paths),
        test("volumes::cve_2017_1002101_a_link_in_a_volume_leads_nowhere", sub_path_escape),
        test("volumes::propagation", propagation),
        test("volumes::volumes_of_an_image", image_volumes),
        test("volumes::cve_2022_23648_an_image_volume_cannot_leave_the_image", image_volume_escape),
        test("volumes::termination_message_file_and_log", termination_message),
        test("volumes::a_file_of_an_init_container_gives_variables", env_file),
    ]
}

/// The file is there before the container that it is for, and not before the one that writes it.
fn env_file() -> Result<()> {
    let node = Node::start()?;
    let key = |key: &str, optional: bool| json!({ "fileKeyRef": { "volumeName": "data", "path": "sub/env", "key": key, "optional": optional } });
    let env = json!([
        { "name": "A", "valueFrom": key("ONE", false) },
        { "name": "B", "value": "$(A)!" },
        { "name": "C", "valueFrom": key("NONE", true) },
    ]);
    let mounts = json!([{ "name": "data", "mountPath": "/data" }]);
    let writes =
        "mkdir /data/sub; printf \"# of the init container\\nONE='first\\nsecond' # why\\n\" > /data/sub/env";
    let spec = |env: Value| {
        json!({
            "volumes": [{ "name": "data", "emptyDir": {} }],
            "initContainers": [shell("first", writes, json!({ "volumeMounts": mounts }))],
            "containers": [shell("main", "exec sleep infinity", json!({ "env": env }))],
        })
    };
    node.apply("web", &pod("web", spec(env)))?;
    let web = node.ready("web")?;
    same("shown", inside(&web, "echo \"$A|$B|${C-none}\"")?, "first\nsecond|first\nsecond!|none".to_owned())?;
    let missing = json!([{ "name": "A", "valueFrom": key("TWO", false) }]);
    node.apply("bad", &pod("bad", spec(missing)))?;
    let bad = node.wait("bad", "to tell what is missing", POD_LIMIT, |pod| {
        pod.waits_for("main") == "CreateContainerConfigError"
    })?;
    let why = bad.container("main")["state"]["waiting"]["message"].as_str().unwrap_or_default().to_owned();
    ensure!(why.starts_with("environment variable key \"TWO\" not found in file \"/"), "{why}");
    ensure!(why.ends_with("/data/sub/env\""), "{why}");
    node.clear()?;
    node.end()
}

pub(crate) fn with_volume(name: &str, source: Value, mount: Value, more: Value) -> String {
    let mount = with(json!({ "name": "v", "mountPath": "/v" }), mount);
    let spec = json!({
        "containers": [shell("main", "exec sleep infinity", json!({ "volumeMounts": [mount] }))],
        "volumes": [with(json!({ "name": "v" }), source)],
    });
    pod(name, with(spec, more))
}

pub(crate) fn plain(name: &str, source: Value) -> String {
    with_volume(name, source, json!({}), json!({}))
}

/// `downwardAPI` and `projected`, which a static pod may have as long as they name no object.
fn of_the_pod() -> Result<()> {
    let mut node = Node::start()?;
    let field = |path: &str, field: &str| json!({ "path": path, "fieldRef": { "fieldPath": field } });
    let memory = json!({ "path": "sub/memory", "mode": 0o400, "resourceFieldRef": {
        "containerName": "main", "resource": "limits.memory", "divisor": "1Mi" } });
    let items = json!([field("namespace", "metadata.namespace"), field("uid", "metadata.uid"), memory]);
    let mounts = json!([
        { "name": "v", "mountPath": "/v" },
        { "name": "p", "mountPath": "/p" },
        { "name": "v", "mountPath": "/one", "subPath": "namespace" },
        { "name": "e", "mountPath": "/p/nested" },
    ]);
    let main = json!({ "volumeMounts": mounts, "resources": { "limits": { "memory": "64Mi" } } });
    node.apply(
        "web",
        &pod(
            "web",
            json!({
                "securityContext": { "fsGroup": 5000 },
                "containers": [shell("main", "exec sleep infinity", main)],
                "volumes": [
                    { "name": "v", "downwardAPI": { "defaultMode": 0o440, "items": items } },
                    { "name": "p", "projected": { "sources": [{ "downwardAPI": { "items": items } }] } },
                    { "name": "e", "emptyDir": {} },
                ],
            }),
        ),
    )?;
    let web = node.ready("web")?;
    same("namespace", inside(&web, "cat /v/namespace /one /p/namespace")?.as_str(), "defaultdefaultdefault")?;
    same("UID", inside(&web, "cat /v/uid")?.as_str(), web.uid())?;
    same("memory", inside(&web, "cat /v/sub/memory /p/sub/memory")?.as_str(), "6464")?;
    same(
        "links",
        inside(&web, "cd /v; readlink namespace; readlink sub; ls")?.as_str(),
        "..data/namespace\n..data/sub\nnamespace\nsub\nuid",
    )?;
    let modes = inside(&web, "stat -L -c '%a %u %g' /v/namespace /v/sub/memory /p/namespace")?;
    same("modes", modes.as_str(), "440 0 5000\n440 0 5000\n644 0 5000")?;
    same("read-only", inside(&web, "echo x > /v/uid 2>/dev/null || echo no")?.as_str(), "no")?;
    same("in memory", inside(&web, "stat -f -c %T /p")?.as_str(), "tmpfs")?;
    same("within", inside(&web, "echo x > /p/nested/x; cat /p/nested/x")?.as_str(), "x")?;

    let dir = format!("{ROOT_DIR}/pods/{}", web.uid());
    let moment = || fs::read_link(format!("{dir}/volumes/kubernetes.io~downward-api/v/..data"));
    let before = moment()?;
    ensure!(before.to_string_lossy().starts_with("..20"), "{}", before.display());
    fs::metadata(format!("{dir}/volumes/kubernetes.io~projected/p/..data/uid"))?;
    fs::metadata(format!("{dir}/plugins/kubernetes.io~empty-dir/wrapped_v/ready"))?;
    node.agent.kill()?;
    node.agent.start()?;
    let web = node.ready("web")?;
    same("after a restart", moment()?, before)?;
    same("after a restart", inside(&web, "cat /v/uid")?.as_str(), web.uid())?;
    node.end()
}

fn host_path() -> Result<()> {
    let node = Node::start()?;
    let dir = node.world.root().join("host");
    fs::create_dir(&dir)?;
    fs::write(dir.join("file"), "content")?;
    let source = |path: &str, kind: &str| json!({ "hostPath": { "path": dir.join(path), "type": kind } });
    for (name, path, kind) in [
        ("any", "", ""),
        ("directory", "", "Directory"),
        ("file", "file", "File"),
        ("made-dir", "new/dir", "DirectoryOrCreate"),
        ("made-file", "new-file", "FileOrCreate"),
    ] {
        node.apply(name, &plain(name, source(path, kind)))?;
        let pod = node.ready(name)?;
        let kind = inside(&pod, "stat -c %F /v")?;
        ensure!(
            kind.contains(if name.ends_with("file") { "regular" } else { "directory" }),
            "{name}: {kind}"
        );
    }
    same("mode of what was made", fs::metadata(dir.join("new/dir"))?.permissions().mode() & 0o777, 0o755)?;
    same("mode of what was made", fs::metadata(dir.join("new-file"))?.permissions().mode() & 0o777, 0o644)?;
    for (name, path, kind) in [
        ("no-dir", "absent", "Directory"),
        ("not-dir", "file", "Directory"),
        ("no-file", "absent", "File"),
        ("no-socket", "file", "Socket"),
    ] {
        node.apply(name, &plain(name, source(path, kind)))?;
        let events = |pod: &PodState| {
            let shown = events(pod).unwrap_or_default();
            shown.contains("FailedMount") && shown.contains("hostPath type check failed")
        };
        node.wait(name, "refused with FailedMount", POD_LIMIT, events)?;
    }
    // Nobody waits for one that no container mounts.
    let mut unused: Value = serde_json::from_str(&plain("unused", source("absent", "Directory")))?;
    unused["spec"]["containers"][0]["volumeMounts"] = json!([]);
    node.apply("unused", &unused.to_string())?;
    node.ready("unused")?;
    ensure!(!dir.join("absent").exists(), "a check made what it looked for");
    node.end()
}

fn sub_paths() -> Result<()> {
    let node = Node::start()?;
    let env = json!({
        "env": [{ "name": "NAME", "value": "expanded" }],
        "volumeMounts": [
            { "name": "v", "mountPath": "/all" },
            { "name": "v", "mountPath": "/sub", "subPath": "one/two" },
            { "name": "v", "mountPath": "/expr", "subPathExpr": "$(NAME)/x" },
            { "name": "v", "mountPath": "/ro", "subPath": "one", "readOnly": true },
        ],
    });
    node.apply(
        "sub",
        &pod(
            "sub",
            json!({
                "containers": [shell("main", "exec sleep infinity", env)],
                "volumes": [{ "name": "v", "emptyDir": {} }],
            }),
        ),
    )?;
    let sub = node.ready("sub")?;
    inside(&sub, "echo a > /sub/a; echo b > /expr/b")?;
    same("below", inside(&sub, "cat /all/one/two/a /all/expanded/x/b")?.as_str(), "a\nb")?;
    same("read-only", inside(&sub, "echo x 2>/dev/null > /ro/x || echo refused")?.as_str(), "refused")?;
    node.end()
}

/// The first container swaps a directory for a link to the node's root; the second mounts it.
fn sub_path_escape() -> Result<()> {
    let node = Node::start()?;
    let secret = node.world.root().join("secret");
    fs::create_dir(&secret)?;
    fs::write(secret.join("key"), "do not read")?;
    for (name, link) in [
        ("absolute", secret.display().to_string()),
        ("relative", format!("../../../../../../../../..{}", secret.display())),
    ] {
        let mount = json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] });
        let victim = json!({ "volumeMounts": [{ "name": "v", "mountPath": "/stolen", "subPath": "link" }] });
        node.apply(
            name,
            &pod(
                name,
                json!({
                    "restartPolicy": "Never",
                    "initContainers": [shell("swap", &format!("ln -s {link} /v/link"), mount)],
                    "containers": [shell("main", "cat /stolen/key; exec sleep infinity", victim)],
                    "volumes": [{ "name": "v", "emptyDir": {} }],
                }),
            ),
        )?;
        let refused = node.wait(name, "refused", POD_LIMIT, |pod| {
            ["CreateContainerConfigError", "CreateContainerError"].contains(&pod.waits_for("main"))
        })?;
        let uid = refused.uid();
        let mounted = fs::read_to_string("/proc/self/mountinfo")?;
        ensure!(
            !mounted.lines().any(|line| line.contains(uid) && line.contains("/secret")),
            "the secret is mounted"
        );
    }
    // A link made by the node's administrator within a hostPath that stays inside it is as harmless.
    let host = node.world.root().join("host");
    fs::create_dir_all(host.join("real"))?;
    symlink("/etc", host.join("out"))?;
    node.apply(
        "out",
        &with_volume("out", json!({ "hostPath": { "path": host } }), json!({ "subPath": "out" }), json!({})),
    )?;
    node.wait("out", "refused", POD_LIMIT, |pod| {
        ["CreateContainerConfigError", "CreateContainerError"].contains(&pod.waits_for("main"))
    })?;
    node.end()
}

fn propagation() -> Result<()> {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    let node = Node::start()?;
    let dir = node.world.root().join("shared");
    fs::create_dir(&dir)?;
    mount(Some(&dir), &dir, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    mount(None::<&str>, &dir, None::<&str>, MsFlags::MS_SHARED, None::<&str>)?;
    let source = || json!({ "hostPath": { "path": dir } });
    for (name, kind) in [("none", "None"), ("slave", "HostToContainer"), ("shared", "Bidirectional")] {
        let mut manifest: Value = serde_json::from_str(&with_volume(
            name,
            source(),
            json!({ "mountPropagation": kind }),
            json!({}),
        ))?;
        manifest["spec"]["containers"][0]["securityContext"] = json!({ "privileged": true });
        node.apply(name, &manifest.to_string())?;
        node.ready(name)?;
    }
    fs::create_dir(dir.join("later"))?;
    mount(Some("tmpfs"), &dir.join("later"), Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    fs::write(dir.join("later/file"), "")?;
    for (name, sees) in [("none", "0"), ("slave", "1"), ("shared", "1")] {
        let pod = node.ready(name)?;
        same(name, inside(&pod, "ls /v/later | wc -l")?.as_str(), sees)?;
    }
    let shared = node.ready("shared")?;
    inside(&shared, "mkdir /v/back && mount -t tmpfs tmpfs /v/back && touch /v/back/file")?;
    ensure!(dir.join("back/file").exists(), "a mount made in the container is not seen on the node");
    let slave = node.ready("slave")?;
    inside(&slave, "mkdir /v/mine && mount -t tmpfs tmpfs /v/mine && touch /v/mine/file")?;
    ensure!(!dir.join("mine/file").exists(), "a mount made in a slave is seen on the node");
    for path in ["later", "back", ""] {
        umount2(&dir.join(path), MntFlags::MNT_DETACH).with_context(|| format!("unmount {path}"))?;
    }
    node.end()
}

fn image_volumes() -> Result<()> {
    let kubelet = json!({ "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" } });
    let node = Node::start_with(&Settings { kubelet, ..Settings::with_registry() })?;
    let image = Image::new(
        &Layer::busybox(Packing::Gzip)?,
        &json!({
            "Volumes": { "/data": {}, "/home/app": {} },
            "WorkingDir": "/data",
            "Env": ["FROM_IMAGE=yes"],
            "Entrypoint": ["/bin/sh", "-c"],
            "Cmd": ["pwd; echo $FROM_IMAGE; exec sleep infinity"],
        }),
    );
    node.registry.as_ref().context("registry")?.push("volumes", "1", &image)?;
    node.apply(
        "volumes",
        &pod("volumes", json!({ "containers": [{ "name": "main", "image": "localhost:5000/volumes:1" }] })),
    )?;
    let pod = node.ready("volumes")?;
    crate::kit::logged(&pod, "main", "/data\nyes\n")?;
    same("mounted", inside(&pod, "grep -cE ' (/data|/home/app) ' /proc/mounts")?.as_str(), "2")?;
    inside(&pod, "touch /data/file")?;

    // Each run has its own. Of those before, the last one alone keeps what it had.
    let again = json!({ "containers": [{
        "name": "main", "image": "localhost:5000/volumes:1", "args": ["touch /data/$HOSTNAME; exit 1"],
    }] });
    node.apply("again", &crate::kit::pod("again", again))?;
    let again = node.wait("again", "in its fourth run", POD_LIMIT, |pod| pod.restarts("main") >= 3)?;
    let left = || -> Result<usize> {
        let all = files::list(format!("{ROOT_DIR}/pods/{}/containers/main", again.uid()))?;
        Ok(all.iter().filter(|path| path.display().to_string().ends_with("-volumes")).count())
    };
    wait::until("those of earlier runs to go", SOON, || {
        let left = left()?;
        Ok(if left <= 2 { Look::Ready(()) } else { Look::NotYet(format!("{left} are left")) })
    })?;
    node.remove("again")?;
    node.gone("again")?;
    node.end()
}

fn image_volume_escape() -> Result<()> {
    let node = Node::start_with(&Settings::with_registry())?;
    let outside = node.world.root().join("outside");
    fs::create_dir(&outside)?;
    fs::write(outside.join("marker"), "of the node")?;
    let outside = outside.display();
    for (name, path) in
        [("dots", format!("/../../../../../..{outside}")), ("host", format!("/proc/1/root{outside}"))]
    {
        let image = Image::new(
            &Layer::busybox(Packing::Gzip)?,
            &json!({ "Volumes": { &path: {} }, "Cmd": ["sleep", "infinity"] }),
        );
        node.registry.as_ref().context("registry")?.push(name, "1", &image)?;
        node.apply(
            name,
            &pod(
                name,
                json!({ "containers": [{ "name": "main", "image": format!("localhost:5000/{name}:1") }] }),
            ),
        )?;
        let state = node.wait(name, "running or refused", POD_LIMIT, |pod| {
            pod.is_ready() || pod.waits_for("main").ends_with("Error")
        })?;
        if state.is_ready() {
            let seen = inside(&state, &format!("cat {path}/marker 2>/dev/null || true"))?;
            same("what the container sees of the node", seen.as_str(), "")?;
        }
        let dir = format!("{ROOT_DIR}/pods/{}", state.uid());
        let copied = berth_integration::node::system("find", &[&dir, "-name", "marker"])?;
        same("copies of the node's files", copied.as_str(), "")?;
    }
    node.end()
}

fn termination_message() -> Result<()> {
    let node = Node::start()?;
    let never = |name: &str, what: &str, more: Value| {
        pod(name, json!({ "restartPolicy": "Never", "containers": [shell("main", what, more)] }))
    };
    node.apply("file", &never("file", "echo words > /dev/termination-log; exit 1", json!({})))?;
    node.apply(
        "path",
        &never(
            "path",
            "echo elsewhere > /tmp/last; exit 1",
            json!({ "terminationMessagePath": "/tmp/last" }),
        ),
    )?;
    node.apply(
        "log",
        &never(
            "log",
            "echo from the log; exit 1",
            json!({ "terminationMessagePolicy": "FallbackToLogsOnError" }),
        ),
    )?;
    node.apply(
        "quiet",
        &never(
            "quiet",
            "echo from the log; exit 0",
            json!({ "terminationMessagePolicy": "FallbackToLogsOnError" }),
        ),
    )?;
    node.apply(
        "long",
        &never("long", "head -c 10000 /dev/zero | tr '\\0' x > /dev/termination-log; exit 1", json!({})),
    )?;
    // It is a mount, which nobody in the container can put a link in place of.
    let link =
        "ln -sf /etc/hostname /dev/termination-log && exit 3; rm -f /dev/termination-log && exit 4; exit 5";
    node.apply("link", &never("link", link, json!({})))?;
    for (name, code, message) in [
        ("file", 1, "words\n"),
        ("path", 1, "elsewhere\n"),
        ("log", 1, "from the log\n"),
        ("quiet", 0, ""),
        ("link", 5, ""),
    ] {
        let ended =
            node.wait(name, "ended", POD_LIMIT, |pod| matches!(pod.phase(), "Failed" | "Succeeded"))?;
        let end = &ended.container("main")["state"]["terminated"];
        same(&format!("code of {name}"), end["exitCode"].as_i64(), Some(code))?;
        same(name, end["message"].as_str().unwrap_or_default(), message)?;
    }
    let long = node.wait("long", "ended", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    same(
        "length",
        long.container("main")["state"]["terminated"]["message"].as_str().map(str::len),
        Some(4096),
    )?;
    node.apply("plain", &script("plain", "exec sleep infinity"))?;
    node.ready("plain")?;
    node.end()
}
