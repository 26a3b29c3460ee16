"""What Helm makes of the chart's values, and that every object of it passes its real schema."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from prism.engine.frontend.arguments import parse_arguments
from prism.serving.kserve_flags import add_kserve_flags
from prism_operator import arguments as operator_arguments
from prism_operator import install

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]

VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": {
        "commonLabels": {"team": "serving"},
        "imagePullSecrets": [{"name": "registry"}],
        "operator": {
            "replicas": 2,
            "nudgePods": True,
            "priorityClassName": "system-cluster-critical",
            "networkPolicy": {"metricsFrom": [{"namespaceSelector": {}}]},
            "tolerations": [{"operator": "Exists"}],
            "nodeSelector": {"kubernetes.io/os": "linux"},
        },
        "otlp": {"endpoint": "http://jaeger:4317", "samplingRatio": 0.25},
        "monitoring": {
            "operator": {"enabled": True},
            "predictors": {"enabled": True},
            "rules": {"enabled": True, "labels": {"team": "serving"}},
        },
        "runtimes": {"gpu": {"engineArgs": {"max-model-len": 32768}, "affinity": {"nodeAffinity": {}}}},
    },
    "one namespace": {"rbac": {"clusterScoped": False}, "monitoring": {"predictors": {"enabled": True}}},
    "several namespaces": {"rbac": {"clusterScoped": False, "namespaces": ["team-a", "team-b"]}},
    "least": {
        "crds": {"install": False},
        "runtimes": {"gpu": {"enabled": False}, "cpu": {"enabled": False}},
        "defaultConfig": {"create": False},
        "monitoring": {"dashboard": {"enabled": False}},
        "operator": {"networkPolicy": {"enabled": False}},
    },
}
# No schema of theirs is at hand; their rules and queries are checked elsewhere.
FOREIGN = ("ServiceMonitor", "PodMonitor", "PrometheusRule", "CustomResourceDefinition")


def of(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = (one for one in manifests if one["kind"] == kind and one["metadata"]["name"] == name)
    return found


def runtime(render: Render, name: str = "gpu", *arguments: str, **settings: Any) -> Manifest:
    """The spec of a runtime, with values of its own."""
    manifests = render(*arguments, values={"runtimes": {name: settings}})
    spec: Manifest = of(manifests, "ClusterServingRuntime", f"prism-{name}")["spec"]
    return spec


def pod_specs(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Every pod that the chart brings about, with the object that does."""
    for one in manifests:
        name = f"{one['kind']}/{one['metadata']['name']}"
        if one["kind"] == "Pod" or one["kind"].endswith("ServingRuntime"):
            yield name, one["spec"]
        elif one["kind"] in ("Deployment", "Job"):
            yield name, one["spec"]["template"]["spec"]


@pytest.mark.parametrize("case", VALUES)
def test_every_object_passes_its_schema(render: Render, validate: Callable[[Manifest], list[str]], case: str) -> None:
    manifests = [one for one in render(values=VALUES[case]) if one["kind"] not in FOREIGN]
    assert {one["metadata"]["name"]: complaint for one in manifests if (complaint := validate(one))} == {}


def test_lint_finds_nothing(helm: Any) -> None:
    done = subprocess.run([helm, "lint", "--strict", "charts/prism"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("case", VALUES)
def test_every_pod_keeps_to_restricted_security_with_a_read_only_root(render: Render, case: str) -> None:
    for name, spec in pod_specs(render(values=VALUES[case])):
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"], name
            assert security["runAsNonRoot"], name
            assert not security["allowPrivilegeEscalation"], name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name


@pytest.mark.parametrize("given", [["--set", "runtimes.gpu.engineArgs.max-num-batched-tokens=1048576"], []])
def test_whole_number_reaches_the_engine_as_it_was_written(render: Render, given: list[str]) -> None:
    settings = {} if given else {"engineArgs": {"max-num-batched-tokens": 1048576}}
    args = runtime(render, "gpu", *given, **settings)["containers"][0]["args"]
    assert "--max-num-batched-tokens=1048576" in args


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, ["--x=0"]),
        (0.0001, ["--x=0.0001"]),
        (2**40, ["--x=1099511627776"]),
        (True, ["--x"]),
        (False, ["--no-x"]),
        ("", ["--x="]),
        ("a b 'c' \"d\" <e> {{f}}", ["--x=a b 'c' \"d\" <e> {{f}}"]),
        ([], ["--x"]),
        ([1, "two words"], ["--x", "1", "two words"]),
        (
            {"size": 1048576, "text": 'a "b" <c>', "deep": False},
            ['--x={"deep":false,"size":1048576,"text":"a \\"b\\" <c>"}'],
        ),
        (None, []),
    ],
)
def test_engine_argument_of_any_kind_is_kept(render: Render, value: Any, shown: list[str]) -> None:
    args = runtime(render, engineArgs={"x": value})["containers"][0]["args"]
    first_own = next(index for index, arg in enumerate(args) if arg.startswith("--grace-period")) + 1
    assert args[first_own:] == shown


def test_further_arguments_come_last(render: Render) -> None:
    args = runtime(render, engineArgs={"x": 1}, extraArgs=["--x=2", '{"a b": 1}'])["containers"][0]["args"]
    assert args[-3:] == ["--x=1", "--x=2", '{"a b": 1}']


def test_zero_false_and_empty_settings_reach_the_default_config(render: Render) -> None:
    spec = '{"limits":{"maxWaitingRequests":0},"scheduler":{"coldLane":{"quota":0},"lexicographic":false}}'
    manifests = render("--set-json", f"defaultConfig.spec={spec}")
    job = of(manifests, "Job", "prism-setup-default")["spec"]["template"]["spec"]["containers"][0]
    assert job["args"] == ["default-config", f"--spec={spec}"]


def test_settings_are_a_folder_of_eight_optional_sources(render: Render) -> None:
    spec = runtime(render)
    (volume,) = (one for one in spec["volumes"] if one["name"] == "prism-settings")
    (mount,) = (one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "prism-settings")
    maps = [source["configMap"] for source in volume["projected"]["sources"]]
    assert maps == [{"name": f"prism-settings-{shard}", "optional": True} for shard in range(8)]
    assert mount == {"name": "prism-settings", "mountPath": "/etc/prism/settings", "readOnly": True}
    assert "--prism-config=/etc/prism/settings/{{.Name}}.yaml" in spec["containers"][0]["args"]


def test_only_the_serving_port_is_declared_since_kserve_exposes_all(render: Render) -> None:
    for name in ("gpu", "cpu"):
        assert [port["containerPort"] for port in runtime(render, name)["containers"][0]["ports"]] == [8080]


def test_probes_ask_prism_and_give_loading_its_time(render: Render) -> None:
    container = runtime(render, startupSeconds=601)["containers"][0]
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 605
    assert {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness")} == {"/v2/health/ready"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/v2/health/live", "port": 8080}


def test_answers_end_before_the_pod_is_killed(render: Render) -> None:
    assert "--grace-period=115" in runtime(render, terminationGracePeriodSeconds=120)["containers"][0]["args"]


def test_too_short_a_grace_period_is_refused_with_a_sentence(helm_template: Any) -> None:
    done = helm_template("--set", "runtimes.gpu.terminationGracePeriodSeconds=10")
    assert "runtimes.gpu.terminationGracePeriodSeconds must be more than 5 s above drainDelaySeconds" in done.stderr


def test_gpu_runtime_is_for_an_a800_node(render: Render) -> None:
    spec = runtime(render)
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A800-SXM4-80GB"}
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_default_node_selector_can_be_taken_away(render: Render) -> None:
    assert "nodeSelector" not in runtime(render, nodeSelector={"nvidia.com/gpu.product": None})


def test_all_that_vllm_writes_has_a_writable_place(render: Render) -> None:
    spec = runtime(render)
    mounts = {one["mountPath"]: one["name"] for one in spec["containers"][0]["volumeMounts"]}
    written = [
        one["value"] for one in spec["containers"][0]["env"] if one.get("value", "").startswith(("/cache", "/tmp"))
    ]
    assert len(written) >= 8
    assert [path for path in written if not any(path == top or path.startswith(f"{top}/") for top in mounts)] == []
    assert {*mounts.values()} == {volume["name"] for volume in spec["volumes"]}


def test_cache_may_be_a_claim(render: Render) -> None:
    claim = {"persistentVolumeClaim": {"claimName": "kernels"}}
    caches = {"compile": {"emptyDir": None, **claim}}
    (volume,) = (one for one in runtime(render, caches=caches)["volumes"] if one["name"] == "compile-cache")
    assert volume == {"name": "compile-cache", **claim}


def environment(render: Render, **otlp: Any) -> dict[str, str]:
    manifests = render(values={"otlp": otlp})
    container = of(manifests, "ClusterServingRuntime", "prism-gpu")["spec"]["containers"][0]
    return {one["name"]: one.get("value", "") for one in container["env"] if one["name"].startswith("OTEL_")}


@pytest.mark.parametrize(
    ("endpoint", "protocol"),
    [
        ("http://jaeger:4317", "grpc"),
        ("http://jaeger:4317/", "grpc"),
        ("http://jaeger:4318", "http/protobuf"),
        ("https://collector.example.com/otlp", "http/protobuf"),
    ],
)
def test_protocol_of_traces_follows_the_endpoint(render: Render, endpoint: str, protocol: str) -> None:
    found = environment(render, endpoint=endpoint)
    assert found["OTEL_EXPORTER_OTLP_ENDPOINT"] == endpoint
    assert found["OTEL_EXPORTER_OTLP_PROTOCOL"] == protocol


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [
        ("http://jaeger:4317", 4317),
        ("http://collector:4318/otlp", 4318),
        ("http://collector/otlp", 80),
        ("https://collector.example.com", 443),
    ],
)
def test_operator_is_let_out_to_the_collector(render: Render, endpoint: str, port: int) -> None:
    policy = of(render(values={"otlp": {"endpoint": endpoint}}), "NetworkPolicy", "prism-operator")
    (rule,) = policy["spec"]["egress"]
    assert {"port": port, "protocol": "TCP"} in rule["ports"]


def test_no_collector_means_no_variables(render: Render) -> None:
    assert environment(render) == {}


@pytest.mark.parametrize(("ratio", "shown"), [(0, "0"), (0.25, "0.25"), (1, "1"), ("0.25", "0.25")])
def test_sampling_ratio_is_kept_zero_too_and_as_set_gives_it(render: Render, ratio: Any, shown: str) -> None:
    assert environment(render, samplingRatio=ratio)["OTEL_TRACES_SAMPLER_ARG"] == shown


def test_operator_gets_the_traces_variables_too(render: Render) -> None:
    operator = of(render(values={"otlp": {"endpoint": "http://j:4318"}}), "Deployment", "prism-operator")
    names = [one["name"] for one in operator["spec"]["template"]["spec"]["containers"][0]["env"]]
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in names


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"operater": {}}, "operater"),
        ({"operator": {"replica": 2}}, "replica"),
        ({"runtimes": {"gpu": {"image": {"tag": 1.0}}}}, "/runtimes/gpu/image/tag"),
        ({"otlp": {"endpoint": "jaeger:4317"}}, "/otlp/endpoint"),
        ({"otlp": {"samplingRatio": 2}}, "/otlp/samplingRatio"),
        ({"otlp": {"samplingRatio": "1.5"}}, "/otlp/samplingRatio"),
        ({"defaultConfig": {"spec": {"schedular": {}}}}, "schedular"),
        ({"defaultConfig": {"spec": {"scheduler": {"coldLane": {"quota": 10}}}}}, "quota"),
        ({"rbac": {"namespaces": ["team-a"]}}, "rbac.clusterScoped is true"),
    ],
)
def test_wrong_value_is_refused_by_name(helm_template: Any, values: dict[str, Any], complaint: str) -> None:
    done = helm_template(values=values)
    assert done.returncode != 0
    assert complaint in done.stderr


def test_one_namespace_mode_brings_nothing_cluster_wide_but_the_crd(render: Render) -> None:
    manifests = render(values={"rbac": {"clusterScoped": False}})
    wide = [one for one in manifests if "namespace" not in one["metadata"]]
    assert {one["kind"] for one in wide} <= {"CustomResourceDefinition"}
    assert {one["metadata"]["namespace"] for one in manifests if one not in wide} == {"prism-system"}


def test_one_namespace_mode_has_serving_runtimes_and_a_scope(render: Render) -> None:
    manifests = render(values={"rbac": {"clusterScoped": False, "namespaces": ["a", "b"]}})
    runtimes = sorted(
        (one["metadata"]["namespace"], one["metadata"]["name"]) for one in manifests if one["kind"] == "ServingRuntime"
    )
    assert runtimes == [("a", "prism-cpu"), ("a", "prism-gpu"), ("b", "prism-cpu"), ("b", "prism-gpu")]
    operator = of(manifests, "Deployment", "prism-operator")["spec"]["template"]["spec"]["containers"][0]
    assert "--watch-namespaces=a,b" in operator["args"]


def test_operator_takes_the_arguments_that_the_chart_gives(render: Render) -> None:
    values = {"rbac": {"clusterScoped": False, "namespaces": ["a", "b"]}, "operator": {"nudgePods": True}}
    operator = of(render(values=values), "Deployment", "prism-operator")["spec"]["template"]["spec"]["containers"][0]
    given = operator_arguments.parse_arguments(operator["args"], {"POD_NAMESPACE": "prism-system"})
    assert given.watch_namespaces == ("a", "b")
    assert given.nudge_pods
    assert given.lease_name == "prism-operator"


def test_setup_takes_the_arguments_that_the_chart_gives(render: Render) -> None:
    for _, spec in pod_specs(render()):
        for container in spec["containers"]:
            if container.get("command", [])[-1:] == ["prism_operator.install"]:
                install.parse_arguments([*container["args"], "--namespace=prism-system"])


def test_predictor_takes_the_arguments_that_the_chart_gives(render: Render) -> None:
    engine = {"max-num-batched-tokens": 1048576, "enable-prefix-caching": False, "enforce-eager": True}
    config = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
    container = runtime(render, engineArgs={**engine, "speculative-config": config})["containers"][0]
    filled = [arg.replace("{{.Name}}", "rag") for arg in container["args"]]
    # KServe puts the InferenceService's arguments behind; the last one counts.
    args, own = parse_arguments([*filled, "--model_name=other", "--grace-period=20"], add_kserve_flags)
    assert (args.max_num_batched_tokens, args.enable_prefix_caching, args.enforce_eager) == (1048576, False, True)
    assert args.speculative_config == config
    assert args.served_model_name == ["other"]
    assert (own.config_path, own.admin_port) == ("/etc/prism/settings/rag.yaml", 8090)
    assert (own.grace_period_s, own.drain_delay_s, own.step_timeout_s) == (20, 5, 300)


def test_roles_grant_no_wildcard_and_no_secret(render: Render) -> None:
    for one in render():
        for rule in one.get("rules", ()):
            granted = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert "*" not in granted, one["metadata"]["name"]
            assert "secrets" not in granted, one["metadata"]["name"]


def test_operator_knows_its_own_labels_and_lease(render: Render) -> None:
    manifests = render(release="other")
    deployment = of(manifests, "Deployment", "other-prism-operator")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    (given,) = (arg.partition("=")[2] for arg in args if arg.startswith("--operator-labels="))
    for pair in given.split(","):
        key, _, value = pair.partition("=")
        assert labels[key] == value
    role = of(manifests, "Role", "other-prism-operator-own")
    assert f"--lease-name={role['rules'][1]['resourceNames'][0]}" in args


def test_hooks_leave_nothing_behind_when_they_succeed(render: Render) -> None:
    for metadata in (one["metadata"] for one in render() if one["kind"] != "Pod"):
        if "helm.sh/hook" in metadata.get("annotations", {}):
            assert "hook-succeeded" in metadata["annotations"]["helm.sh/hook-delete-policy"], metadata["name"]


def test_only_the_pod_is_a_test_so_that_helm_can_show_its_log(render: Render) -> None:
    tests = [one for one in render() if "test" in one["metadata"].get("annotations", {}).get("helm.sh/hook", "")]
    assert [one["kind"] for one in tests] == ["Pod"]


def test_what_the_operator_and_the_test_leave_is_removed_after_an_uninstall(render: Render) -> None:
    manifests = render()
    job = of(manifests, "Job", "prism-setup-clean")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "post-delete"
    args = job["spec"]["template"]["spec"]["containers"][0]["args"]
    rules = of(manifests, "Role", "prism-setup-clean-own")["rules"]
    lease, pod = (name for rule in rules for name in rule["resourceNames"])
    assert args == ["clean", "--namespaces=", f"--lease={lease}", f"--pod={pod}"]


def test_no_hook_could_delete_what_users_own(render: Render) -> None:
    kinds = {one["kind"] for one in render() if "helm.sh/hook" in one["metadata"].get("annotations", {})}
    assert not kinds & {"CustomResourceDefinition", "PrismConfig", "ConfigMap"}


def test_budget_and_second_operator_come_together(render: Render) -> None:
    assert not [one for one in render() if one["kind"] == "PodDisruptionBudget"]
    assert [one for one in render("--set", "operator.replicas=2") if one["kind"] == "PodDisruptionBudget"]


def test_no_two_runtimes_have_the_rank_of_another_which_kserve_would_refuse(render: Render) -> None:
    found = [one["spec"]["supportedModelFormats"] for one in render() if one["kind"] == "ClusterServingRuntime"]
    ranks = [{(one["name"], one["priority"]) for one in formats} for formats in found]
    assert len(set.union(*ranks)) == sum(len(one) for one in ranks)
    assert min(rank for formats in ranks for _, rank in formats) > 2, "KServe's own have 1 and 2"


def test_runtimes_are_marked_as_prism_s_on_the_pods_too(render: Render) -> None:
    for one in render():
        if one["kind"] == "ClusterServingRuntime":
            assert one["metadata"]["labels"]["serving.prism.dev/runtime"] == "true"
            assert one["spec"]["labels"]["serving.prism.dev/runtime"] == "true"
