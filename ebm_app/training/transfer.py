"""Initialisation of a network with the weights of a teacher."""

from torch import Tensor, nn

from ebm_app.ebm import EBM

#: First layer and class embedding of a network
FIRST, CLASSES = "unet.conv_in.weight", "class_embedding.weight"


def unlabelled_weights(teacher: EBM) -> dict[str, Tensor]:
    """Return the weights of a network without class embedding that equals the teacher's network,
    or its late network, for images without labels: its bias includes the last embedding."""
    net = teacher.model.net.late if teacher.config.early else teacher.model.net
    weights = dict(net.state_dict())
    for name in [name for name in weights if name.endswith(CLASSES)]:
        bias = name.replace(CLASSES, "time_embedding.linear_2.bias")
        weights[bias] = weights[bias] + weights.pop(name)[-1]
    return weights


def copy_weights(teacher: EBM, net: nn.Module) -> None:
    """Copy the teacher's weights into a network with the same hidden layers.

    The first layer gets the weights of the input features that both networks have, and zeros for
    its other inputs. Other layers of another shape keep their weights.
    """
    own = net.state_dict()
    weights = {unet_name(name): weight for name, weight in unlabelled_weights(teacher).items()}
    for name, weight in own.items():
        start = weights.get(unet_name(name), weight)
        if name.endswith(FIRST):  # the last inputs of the teacher may be conditions
            num = min(weight.shape[1], start.shape[1] - teacher.config.condition_dim)
            weight.zero_()[:, :num] = start[:, :num]
        elif weight.shape == start.shape:
            own[name] = start
    net.load_state_dict(own)


def unet_name(name: str) -> str:
    """Return the name of a weight without the names of the networks that contain its U-Net."""
    return name.rpartition("unet.")[2]
