"""Ray Serve's asynchronous inference on topics: ``from rmq_ray import serve as mqs``.

    TaskProcessorConfig(queue_name="images", adapter=RmqTaskProcessorAdapter, adapter_config={})
    AutoscalingPolicy(policy_function=LagPolicy, policy_kwargs={"queue_name": "images"})

Decides how a task becomes a message, a result a record, and a handler's end an acknowledgement.
Nothing of Serve but ``ray.serve.schema`` and ``ray.serve.task_consumer`` is imported. Open
``adapter`` first, then ``task_worker``.
"""

from rmq_ray.extras import named

with named("serve"):
    from rmq_ray.serve.adapter import RmqTaskProcessorAdapter
    from rmq_ray.serve.lag_policy import LagPolicy
    from rmq_ray.serve.settings import RmqAdapterConfig

__all__ = ["LagPolicy", "RmqAdapterConfig", "RmqTaskProcessorAdapter"]
