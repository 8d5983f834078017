"""An InferenceModel on Kubernetes, from `kubectl apply` to its end: what is made of it, and where it answers."""

from __future__ import annotations

import msgspec

from halimede.models.desired_state import Desired
from tests.integration.inference_models import PLURAL, inference_model, version
from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import Body
from tests.kubernetes.podstates import HOST, running, unready
from tests.kubernetes.world import World, world


async def serving(w: World) -> Body:
    """Wait until it is served."""
    return await w.reaches("Running", name="faces", plural=PLURAL)


async def test_nothing_is_opened_to_the_outside_that_nobody_asked_for(api: Api) -> None:
    async with world(api) as w, w.gm():
        await w.apply(inference_model(servingPort=8501))
        await serving(w)
        assert (await w.made("Service", "faces"))["spec"]["type"] == "ClusterIP"
        await w.shows(lambda status: status.get("url") == f"http://faces.{w.namespace}.svc:8501", "faces", PLURAL)


async def test_in_the_cloud_it_becomes_replicas_a_service_and_an_address_for_the_outside(api: Api) -> None:
    async with world(api) as w, w.gm():
        await w.apply(inference_model(replicas=3, servingPort=8501, serviceType="NodePort"))
        status = await serving(w)
        made, network = await w.made("Deployment", "faces"), await w.made("Service", "faces")
        assert (status["active"], status["servingVersion"]) == (3, "2")
        assert made["spec"]["replicas"] == 3
        assert made["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        assert "nodeSelector" not in made["spec"]["template"]["spec"]
        assert network["spec"]["type"] == "NodePort"
        [rest] = [port for port in network["spec"]["ports"] if port["name"] == "http"]
        assert (rest["port"], rest["targetPort"]) == (8501, 8501)
        await w.shows(lambda status: status.get("url") == f"http://{HOST}:{rest['nodePort']}", "faces", PLURAL)


async def test_the_pods_fetch_the_version_verified_and_our_own_server_answers_with_it(api: Api) -> None:
    async with world(api, fetch_allow=("private",)) as w, w.gm():
        digest = "0" * 63 + "1"
        env = [{"name": "A", "value": "b"}]
        await w.apply(inference_model(manifest=[version("7", sha256sum=digest)], labels=["joy"], env=env))
        await serving(w)
        template = (await w.made("Deployment", "faces"))["spec"]["template"]
        [fetch] = template["spec"]["initContainers"]
        [server] = template["spec"]["containers"]
        assert fetch["args"][:4] == ["--url", "https://models.example/7.tar.gz", "--sha256", digest]
        assert fetch["args"][-3:] == ["--unpack", "--allow", "private"]
        assert server["command"] == ["python", "-m", "halimede", "serve"]
        assert server["args"][:4] == ["--file", "/etc/halimede/serve/model.json", "--http", "0.0.0.0:8080"]
        assert server["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
        assert server["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
        assert {"name": "A", "value": "b"} in server["env"]
        wish = msgspec.json.decode(template["metadata"]["annotations"]["halimede.io/desired"], type=Desired)
        [model] = wish.models
        path = fetch["args"][fetch["args"].index("--out") + 1]
        assert (model.name, model.version, model.digest, model.path) == ("faces", "7", digest, path)
        assert model.spec["labels"] == ["joy"]
        assert any(mount["mountPath"] == "/downloads" for mount in server["volumeMounts"])


async def test_another_target_version_is_rolled_out_and_served_only_once_it_answers(api: Api) -> None:
    async with world(api) as w, w.gm():
        await w.apply(inference_model(targetVersion="1"))
        assert (await serving(w))["servingVersion"] == "1"
        w.player.behave(unready, prefix="faces")
        await w.apply(inference_model(targetVersion="2"))
        waiting = await w.reaches("Pending", name="faces", plural=PLURAL, generation=2)
        assert waiting["servingVersion"] == "1"
        w.player.behave(running, prefix="faces")
        await w.shows(lambda status: status.get("servingVersion") == "2", "faces", PLURAL)
        assert [each["version"] for each in (await w.status("faces", PLURAL))["versions"]] == ["2", "1"]


async def test_an_ingress_comes_goes_and_is_the_address(api: Api) -> None:
    async with world(api) as w, w.gm():
        await w.apply(inference_model(ingress={"host": "faces.example", "path": "/v", "tlsSecret": "cert"}))
        status = await serving(w)
        assert status["url"] == "https://faces.example/v"
        made = await w.made("Ingress", "faces")
        assert made["spec"]["rules"][0]["host"] == "faces.example"
        assert made["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"] == "faces"
        assert (await w.made("Service", "faces"))["spec"]["type"] == "ClusterIP"
        await w.apply(inference_model(serviceType="LoadBalancer"))
        await api.until_gone("Ingress", "faces")
        given = {"status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.7"}]}}}
        await api.client.patch("Service", w.namespace, "faces", given, "status")
        await w.shows(lambda status: status.get("url") == "http://198.51.100.7:8080", "faces", PLURAL)


async def test_an_image_wins_and_is_served_at_its_port_without_any_model_file(api: Api) -> None:
    async with world(api) as w, w.gm():
        await w.apply(inference_model(image="example.io/faces:3", servingPort=443))
        assert (await serving(w))["servingVersion"] == "example.io/faces:3"
        pod = await w.pod_of("faces")
        assert not pod.get("initContainers")
        assert pod["containers"][0]["image"] == "example.io/faces:3"
        assert pod["containers"][0]["ports"][0]["containerPort"] == 443


async def test_what_cannot_be_served_says_why_and_costs_nothing_that_runs(api: Api) -> None:
    rules = {"allowed_images": ("good.example",), "ingress_hosts": ("*.ours.example",)}
    async with world(api, **rules, service_types=("ClusterIP", "NodePort")) as w, w.gm():
        await w.apply(inference_model())
        await serving(w)
        before = await w.made("Deployment", "faces")
        bucket = [{"version": "1", "downloadURL": "s3://bucket/model.onnx"}]
        changes: list[tuple[str, Body]] = [
            ("FrameworkNotSupported", {"frameworkType": "caffe"}),
            ("InvalidDigest", {"manifest": [version("1", sha256sum="abc")]}),
            ("ExposureNotAllowed", {"serviceType": "LoadBalancer"}),
            ("ExposureNotAllowed", {"ingress": {"host": "x.ours.example.evil"}}),
            ("ExposureNotAllowed", {"ingress": {}}),
            ("ImageNotAllowed", {"image": "bad.example/x:1"}),
            ("HostPathNotAllowed", {"manifest": [{"version": "1", "downloadURL": "/etc/model.onnx"}]}),
            ("SecretNotFound", {"credentialName": "s3", "manifest": bucket}),
        ]
        for reason, change in changes:
            await w.apply(inference_model(**change))
            await w.reaches("Degraded", reason, name="faces", plural=PLURAL)
            assert (await w.made("Deployment", "faces"))["spec"] == before["spec"]
        await w.apply(inference_model())
        await serving(w)


async def test_no_replicas_serve_nothing_and_some_serve_again(api: Api) -> None:
    async with world(api) as w, w.gm():
        await w.apply(inference_model(replicas=0))
        status = await w.reaches("Stopped", "NoReplicas", name="faces", plural=PLURAL)
        assert "url" not in status
        await w.apply(inference_model(replicas=2))
        assert (await serving(w))["active"] == 2
