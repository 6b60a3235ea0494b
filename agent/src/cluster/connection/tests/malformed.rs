//! Kubeconfigs that are none.

use super::*;

const CANARY: &str = "abcdef.0123456789abcdef";

#[tokio::test]
async fn nothing_is_told_of_the_text_of_what_cannot_be_understood() {
    let node = Node::with(json!({ "server": "https://127.0.0.1:1" }), json!({ "token": CANARY }));
    let of = |user: &str| format!("apiVersion: v1\nkind: Config\nusers:\n- name: x\n  user:{user}");
    for text in [
        of(&format!("\n    token: {CANARY}\n    token: {CANARY}\n")),
        of(&format!(" {CANARY}\n")),
        of(&format!(" {{token: \"{CANARY}")),
    ] {
        node.write(&text);
        let connecting = node.connection().await.err().unwrap();
        let looking = reload::look(&node.cluster.kubeconfig).await.unwrap_err();
        let told = [with_causes(&connecting), with_causes(&looking)];
        assert!(told.iter().all(|told| told.contains("it cannot be understood")), "{told:?}");
        let shown = format!("{told:?} {connecting:?} {looking:?}");
        assert!(!shown.contains(CANARY), "{shown}");
    }
}
