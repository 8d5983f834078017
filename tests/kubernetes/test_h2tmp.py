import asyncio, time, json
from tests.kubernetes.test_end_to_end import *
pytestmark=[]
async def test_x(api, tmp_path):
    pictures = digits()
    t=time.monotonic()
    async with whole(api, tmp_path) as made:
        print("whole", time.monotonic()-t); t=time.monotonic()
        await made.gm("gm-0")
        await made.follow(SERVICE)
        await made.apply(*made.manifests())
        await made.running(SERVICE)
        print("running", time.monotonic()-t); t=time.monotonic()
        await made.send(pictures[:100])
        await until("answers", lambda: not made.unanswered)
        print("answered", time.monotonic()-t, made.copies.total(), len(made.accepted))
        async def c(): 
            m=await made.metrics(SERVICE)
            return m.get("inferenceNumber")==100 and m
        print(await until("metrics", c)); print(time.monotonic()-t)
        print(json.dumps(await made.status(SERVICE), indent=1))
        pod = made.kubelets[made.edges[0]].pod("digits") if any(p.name.startswith("digits") for p in made.kubelets[made.edges[0]].pods.values()) else made.kubelets[made.edges[1]].pod("digits")
        print(json.dumps(pod.body["status"],indent=1)[:3000])
        import subprocess
        pid=pod.run().process.pid
        print(open(f"/proc/{pid}/status").read())
        print(subprocess.run(f"nsenter -t {pid} -m -p -n -r sh -c 'id; ls -la / /etc/halimede/broker/ /home/data/models /var/lib/halimede/state; mount; ps aux; ip a; touch /x'",shell=True,capture_output=True,text=True))
        pod = made.kubelets[made.cloud].pod("digits")
        pid=pod.run().process.pid
        print(subprocess.run(f"nsenter -t {pid} -m -p -n -r sh -c 'ls -laR /downloads'; ls -lR {made.kubelets[made.cloud].root}",shell=True,capture_output=True,text=True).stdout)
        print(made.downloads, [ (r.name,r.exit_code,r.starts) for k in made.kubelets.values() for p in k.pods.values() for r in (*p.init,*p.runs)])
        print(made.story())
